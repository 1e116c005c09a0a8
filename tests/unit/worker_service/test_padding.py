"""Examples of unequal length: padded batches, buckets, their order, and what cannot be padded."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import Stepper, sample_job

from psfleet.errors import ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.accumulation import microbatches
from worker_service.frontends import front_end
from worker_service.input_pipeline import evaluation_batches
from worker_service.training_data import TrainingData

NUM_EXAMPLES = 43
BUCKETS = {"pad": True, "bucket_boundaries": [3, 6]}
IDS = tf.TensorSpec([None], tf.int64)


def length(example: int) -> int:
    return example % 7 + 1


def sequences(count: int = NUM_EXAMPLES, spec: tf.TensorSpec = IDS) -> tf.data.Dataset:
    """Example i is `length(i)` times the number i + 1."""

    def made() -> Iterator[list[int]]:
        yield from ([at + 1] * length(at) for at in range(count))

    return tf.data.Dataset.from_generator(made, output_signature=spec)


@functools.cache
def train(shard: int, shards: int) -> tf.data.Dataset:
    return sequences().shard(shards, shard)


def job(content: dict[str, Any], **train: Any) -> Job:
    return parse_job({**sample_job(**train).model_dump(mode="json"), "input": content})


def data(job: Job, train: Any = train) -> TrainingData:
    return TrainingData(GraphProgram(loss=lambda batch: batch, train=train), job, 0, 1, rotates=False)


def first(count: int, job: Job, start: int = 0) -> list[np.ndarray]:
    return [batch for (batch,) in itertools.islice(data(job).batches(start), count)]


def test_examples_are_padded_to_the_longest_of_their_batch() -> None:
    batch, after = first(2, job({"pad": True}))
    assert batch.tolist() == [[1, 0, 0, 0], [2, 2, 0, 0], [3, 3, 3, 0], [4, 4, 4, 4]]
    assert after.shape == (4, 7)


def test_each_kind_of_tensor_has_its_own_padding() -> None:
    rows = [{"flag": [True], "text": ["a"]}, {"flag": [True] * 2, "text": ["b", "c"]}]
    specs = {"flag": tf.TensorSpec([None], tf.bool), "text": tf.TensorSpec([None], tf.string)}
    examples = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=specs)
    found = next(data(job({"pad": True}, batch_size=2), lambda *shard: examples).batches(0))
    assert [batch.tolist() for batch in found] == [[[True, False], [True, True]], [[b"a", b""], [b"b", b"c"]]]


def test_batches_of_buckets_have_examples_of_similar_length_each_once_in_an_epoch() -> None:
    lengths = [length(at) for at in range(NUM_EXAMPLES)]
    in_bucket = [sum(low <= size < high for size in lengths) for low, high in ((0, 3), (3, 6), (6, 99))]
    in_epoch = sum(count // 4 for count in in_bucket)
    batches = first(3 * in_epoch, job(BUCKETS, shuffle=16))
    for epoch in (batches[:in_epoch], batches[in_epoch : 2 * in_epoch], batches[2 * in_epoch :]):
        used = Counter(int(number) for batch in epoch for number in batch[:, 0])
        assert set(used.values()) == {1}
        for batch in epoch:
            sizes = np.count_nonzero(batch, axis=1)
            assert sizes.max() == batch.shape[1]
            assert len({(size >= 3) + (size >= 6) for size in sizes.tolist()}) == 1, sizes
    assert str(batches[:in_epoch]) != str(batches[in_epoch : 2 * in_epoch]), "each epoch has its own order"


@pytest.mark.parametrize("content", [{"pad": True}, BUCKETS], ids=["pad", "buckets"])
def test_a_run_that_resumes_in_the_second_epoch_reads_what_an_unbroken_run_would(content: dict[str, Any]) -> None:
    padded = job(content, shuffle=16)
    unbroken = first(16, padded)
    tf.random.set_seed(99)
    for found, expected in zip(first(4, padded, start=12), unbroken[12:], strict=True):
        assert np.array_equal(found, expected)


def test_microbatches_of_one_gradient_have_the_length_of_the_longest() -> None:
    (batch,) = first(1, job({"pad": True}, accumulate=2))
    parts = microbatches([batch], 2)
    assert [part[0].shape for part in parts] == [(4, 7), (4, 7)]


@pytest.mark.parametrize(
    ("content", "examples", "message"),
    [
        ({}, sequences(), r"Cannot batch tensors .* shape \[\d\]; input\.pad: true in the job file pads them$"),
        (
            {"pad": True},
            sequences(spec=tf.TensorSpec(None, tf.int64)),
            "training examples have the shapes <unknown>, expected a known rank of each with input.pad",
        ),
        (BUCKETS, tf.data.Dataset.range(8), r"have the shapes \(\), expected None for the sizes that differ"),
        (BUCKETS, sequences(3), "have 3 examples, expected at least train.batch_size = 4 in one of the buckets"),
        (BUCKETS, sequences(0), "the training data of shard 0 are empty"),
    ],
)
def test_what_cannot_be_batched_is_refused_in_one_line(
    content: dict[str, Any], examples: tf.data.Dataset, message: str
) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        next(data(job(content), lambda *shard: examples).batches(0))
    assert "\n" not in str(caught.value)


def test_evaluation_data_are_padded_whole() -> None:
    program = GraphProgram(loss=lambda batch: batch, train=train, evaluate=lambda: sequences(5))
    batches = evaluation_batches(program, job(BUCKETS), tf.TensorSpec([None, None], tf.int64))
    assert batches is not None
    assert [batch.shape for batch in batches.as_numpy_iterator()] == [(4, 4), (1, 5)]


def test_evaluation_data_need_no_buckets() -> None:
    program = GraphProgram(loss=lambda batch: batch, train=train, evaluate=lambda: tf.data.Dataset.range(8))
    batches = evaluation_batches(program, job(BUCKETS), tf.TensorSpec([None], tf.int64))
    assert batches is not None
    assert [batch.tolist() for batch in batches.as_numpy_iterator()] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_evaluation_data_that_cannot_be_padded_are_refused() -> None:
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[[1], [1, 2]]]))
    program = GraphProgram(loss=lambda batch: batch, train=train, evaluate=lambda: ragged)
    with pytest.raises(ProgramError, match=r"examples of evaluate\(\) hold a RaggedTensorSpec, expected dense"):
        evaluation_batches(program, job({"pad": True}), tf.TensorSpec([None, None], tf.int64))


def labelled(shard: int, shards: int) -> tf.data.Dataset:
    return train(shard, shards).map(lambda ids: (ids, tf.cast(ids[0] % 2, tf.float32)))


def recurrent() -> keras.Model:
    """Not built: the first batch of the data decides its shapes."""
    mask = keras.layers.Embedding(NUM_EXAMPLES + 1, 4, mask_zero=True)
    return keras.Sequential([mask, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])


def graph_loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    ids, label = batch
    table = tf.compat.v1.get_variable("table", [NUM_EXAMPLES + 1, 4])
    found = tf.nn.embedding_lookup(table, ids) * tf.cast(ids > 0, tf.float32)[..., tf.newaxis]
    return tf.reduce_mean(tf.square(tf.reduce_sum(found, axis=[1, 2]) - label))


@pytest.mark.parametrize(
    "program",
    [
        KerasProgram(model=recurrent, loss="mse", train=labelled),
        GraphProgram(loss=graph_loss, train=labelled),
    ],
    ids=["keras", "graph"],
)
def test_one_graph_takes_batches_of_any_length(program: KerasProgram | GraphProgram) -> None:
    """Padding has no gradient: the model masks it."""
    padded = job({"pad": True})
    step = Stepper.of(front_end(program, padded, 1, 0))
    batches = TrainingData(program, padded, 0, 1, rotates=False).batches(0)
    first, second = itertools.islice(batches, 2)
    assert first[0].shape[1] != second[0].shape[1]
    for batch in (first, second):
        table = max(step.gradients(batch).values(), key=len)
        assert sorted(np.flatnonzero(table.any(axis=1))) == sorted(set(batch[0].ravel().tolist()) - {0})
