"""`input: {from: preload}`: the data set is read once, and gives the batches that it gives when read in every epoch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from psfleet.polling import wait_until
from worker_service.batch_reader import BatchReader
from worker_service.training_data import TrainingData

NUM_EXAMPLES = 23
NUM_BATCHES = 3 * (NUM_EXAMPLES // 4)
END_SECS = 30.0


@dataclass
class Source:
    """Examples of a known or an unknown number; counts how often each shard's are read.

    Attributes:
        gate: Closed, it blocks the source before its last example.
    """

    is_known: bool = False
    starts: list[int] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def train(self, shard: int, shards: int) -> tf.data.Dataset:
        def made() -> Iterator[np.ndarray]:
            self.starts.append(shard)
            for at in range(shard, NUM_EXAMPLES, shards):
                if at + shards >= NUM_EXAMPLES:
                    self.gate.wait(END_SECS)
                yield np.full(at % 5 + 1, at)

        examples = tf.data.Dataset.from_generator(made, output_signature=tf.TensorSpec([None], tf.int64))
        size = len(range(shard, NUM_EXAMPLES, shards))
        return examples.apply(tf.data.experimental.assert_cardinality(size)) if self.is_known else examples


def opened() -> Source:
    source = Source()
    source.gate.set()
    return source


def job(source: str, **content: Any) -> Job:
    fields = sample_job(shuffle=8).model_dump(mode="json")
    return parse_job({**fields, "input": {"from": source, "pad": True, **content}})


def data(job: Job, train: Callable[[int, int], tf.data.Dataset], shards: int = 1) -> TrainingData:
    return TrainingData(GraphProgram(loss=lambda batch: batch, train=train), job, 0, shards, rotates=shards > 1)


def numbers(data: TrainingData, start: int = 0, count: int = NUM_BATCHES) -> list[list[list[int]]]:
    return [batch.tolist() for (batch,) in itertools.islice(data.batches(start), count)]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("content", [{}, {"bucket_boundaries": [3]}], ids=["pad", "buckets"])
def test_the_source_is_read_once_for_the_batches_of_all_epochs(is_known: bool, content: dict[str, Any]) -> None:
    source, again = opened(), opened()
    source.is_known = again.is_known = is_known
    worker = data(job("worker", **content), again.train)
    preloaded = data(job("preload", **content), source.train)
    expected = numbers(worker)
    assert numbers(preloaded) == expected
    assert numbers(preloaded, start=7, count=3) == expected[7:10], "a new reader of the process"
    assert (len(source.starts), len(again.starts) > 2) == (1, True)


def test_each_shard_of_a_worker_that_changes_shards_is_read_once() -> None:
    source = opened()
    read = numbers(data(job("preload"), source.train, shards=2), count=20)
    assert source.starts == [0, 1]
    assert read == numbers(data(job("worker"), opened().train, shards=2), count=20)


def test_the_length_of_a_shard_in_memory_is_known() -> None:
    preloaded = data(job("preload"), opened().train)
    numbers(preloaded, count=1)
    per_epoch = NUM_EXAMPLES // 4
    assert preloaded.num_skipped(1000 * per_epoch + 2) == 2


def test_a_reader_that_follows_a_closed_one_takes_what_that_one_has_read() -> None:
    source = Source()
    preloaded = data(job("preload"), source.train)
    first = BatchReader(lambda reading: preloaded.batches(3, reading))
    wait_until(lambda: bool(source.starts), END_SECS, "the source to be read")
    first.close()
    second = BatchReader(lambda reading: preloaded.batches(5, reading))
    source.gate.set()
    found = second.get(END_SECS)
    second.close()
    assert found is not None
    assert [found[0].tolist()] == numbers(data(job("worker"), opened().train), start=5, count=1)
    assert source.starts == [0]


def test_what_is_in_memory_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "psfleet.worker")
    texts = tf.data.Dataset.from_tensor_slices((["a", "bcd", "", "ef"], np.zeros((4, 2), np.float32)))
    next(data(job("preload"), lambda *shard: texts).batches(0))
    [record] = [vars(record) for record in caplog.records]
    assert (record["event"], record["shard"], record["examples"]) == ("preloaded", 0, 4)
    assert record["bytes"] == 6 + 4 * 2 * 4


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (tf.data.Dataset.range(8).shuffle(4), "are random, and input.from: preload reads them once; expected"),
        (tf.data.Dataset.range(8).repeat(), r"repeat for ever, expected no repeat\(\) with input.from: preload"),
        (tf.data.Dataset.range(0), "are empty, expected"),
        (tf.data.Dataset.range(3), "have 3 examples, expected at least train.batch_size = 4"),
        (
            tf.data.TFRecordDataset("missing.tfrecord"),
            "reading the training data of shard 0 raised NotFoundError: missing.tfrecord",
        ),
    ],
)
def test_data_that_cannot_be_kept_are_refused_in_one_line(examples: tf.data.Dataset, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        next(data(job("preload"), lambda *shard: examples).batches(0))
    assert "\n" not in str(caught.value)
