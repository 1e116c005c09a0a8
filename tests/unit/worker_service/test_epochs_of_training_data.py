"""What a worker reads to reach a batch of a later epoch, and which batches it may wait for as long as for the first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job
from support.rows import first_rows

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from worker_service.batch_reader import Batch, Reading
from worker_service.input_pipeline import read
from worker_service.training_data import TrainingData

BATCH_SIZE = 4
NUM_SHARDS = 4
LENGTH = 8
"""Batches of a shard that is generated."""
BUCKETS = {"pad": True, "bucket_boundaries": [4]}
Train = Callable[[int, int], tf.data.Dataset]


def two_batches(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(1000 * shard, 1000 * shard + 2 * BATCH_SIZE)


def two_of_unknown_length(shard: int, shards: int) -> tf.data.Dataset:
    return two_batches(shard, shards).filter(tf.autograph.experimental.do_not_convert(lambda example: example >= 0))


def generated(made: list[int]) -> Train:
    """Examples of 1 to 8 equal numbers, of unknown length; each that is made is noted."""

    def train(shard: int, shards: int) -> tf.data.Dataset:
        def examples() -> Iterator[np.ndarray]:
            for number in range(LENGTH * BATCH_SIZE):
                made.append(number)
                yield np.full([1 + number % 8], 1000 * shard + number)

        return tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec([None], tf.int64))

    return train


def data(train: Train, *, rotates: bool = False, shuffle: int = 0, **content: Any) -> TrainingData:
    job = Job.model_validate({**sample_job(shuffle=shuffle).model_dump(mode="json"), "input": content})
    return TrainingData(GraphProgram(loss=lambda batch: batch, train=train), job, 0, NUM_SHARDS, rotates)


@pytest.mark.parametrize(
    ("rotates", "content"), first_rows([(True, BUCKETS), (False, {"pad": True}), (False, BUCKETS)], 2)
)
def test_a_new_process_reads_data_of_unknown_length_once_before_a_batch_of_a_later_epoch(
    rotates: bool, content: dict[str, Any]
) -> None:
    """All shards once, if they rotate; and then the epoch of the batch."""
    made: list[int] = []
    start = 40 * LENGTH + 1
    (found,) = next(data(generated(made), rotates=rotates, **content).batches(start))
    epochs = 1 + (NUM_SHARDS if rotates else 1)
    assert len(made) <= epochs * LENGTH * BATCH_SIZE
    (expected,) = next(data(generated([]), rotates=rotates, **content).batches(1))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("rotates", "shuffle", "expected"),
    [(True, 0, [False] * 6 + [False, True] * 3), (False, 8, [False, True] * 6), (False, 0, [False] * 12)],
)
def test_in_one_pipeline_a_reader_knows_when_another_shard_or_order_begins(
    monkeypatch: pytest.MonkeyPatch, rotates: bool, shuffle: int, expected: list[bool]
) -> None:
    """Its first batch may take longer, as when the shard was opened: a buffer is filled again."""
    reading, opened = Reading(), []

    def watched(dataset: tf.data.Dataset, job: Job, what: str) -> Iterator[Batch]:
        for batch in read(dataset, job, what):
            yield batch
            opened.append(reading.opens_shard)

    monkeypatch.setattr("worker_service.training_data.read", watched)
    for _ in itertools.islice(data(two_batches, rotates=rotates, shuffle=shuffle).batches(0, reading), 13):
        assert not reading.opens_shard
    assert opened == expected


@pytest.mark.parametrize("shuffle", [8, 0])
def test_a_reader_knows_that_an_epoch_of_unknown_length_is_shuffled(
    monkeypatch: pytest.MonkeyPatch, shuffle: int
) -> None:
    reading, opened = Reading(), []

    def watched(dataset: tf.data.Dataset, job: Job, what: str) -> Iterator[Batch]:
        opened.append(reading.opens_shard)
        return read(dataset, job, what)

    monkeypatch.setattr("worker_service.training_data.read", watched)
    for _ in itertools.islice(data(two_of_unknown_length, shuffle=shuffle).batches(0, reading), 5):
        assert not reading.opens_shard
    assert opened == [shuffle > 0] * 3
