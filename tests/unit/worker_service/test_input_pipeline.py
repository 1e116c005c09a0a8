"""The order of batches, and what is said of data that give none."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job

from psfleet.errors import DataStallError, ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.job.sections import Deadlines
from worker_service.input_pipeline import evaluation_batches, read
from worker_service.training_data import TrainingData

NUMBERS = tf.TensorSpec([None], tf.int64)
"""The structure of a training batch of the data sets below."""


def known(num_examples: int) -> Callable[[int, int], tf.data.Dataset]:
    """As the next two: makes each data set once, which takes TensorFlow longer than to read it."""
    return functools.cache(lambda shard, shards: tf.data.Dataset.range(num_examples).shard(shards, shard))


def unknown(num_examples: int) -> Callable[[int, int], tf.data.Dataset]:
    def numbers() -> Iterator[int]:
        yield from range(num_examples)

    signature = tf.TensorSpec([], tf.int64)
    return functools.cache(lambda shard, shards: tf.data.Dataset.from_generator(numbers, output_signature=signature))


def endless(num_examples: int) -> Callable[[int, int], tf.data.Dataset]:
    return functools.cache(lambda shard, shards: tf.data.Dataset.range(num_examples).repeat())


def program(train: Callable[[int, int], tf.data.Dataset], evaluate: object = None) -> GraphProgram:
    return GraphProgram(loss=lambda batch: batch, train=train, evaluate=evaluate)


def batches(train: object, job: Job, shard: int, shards: int, start: int) -> Iterator[tuple[np.ndarray, ...]]:
    return TrainingData(program(train), job, shard, shards, rotates=False).batches(start)


def first(count: int, train: object, job: Job, shard: int = 0, shards: int = 1, start: int = 0) -> list[list[int]]:
    found = batches(train, job, shard, shards, start)
    return [batch.tolist() for (batch,) in itertools.islice(found, count)]


@pytest.mark.parametrize("train", [known(10), unknown(10)])
@pytest.mark.parametrize("start", [0, 1, 2, 7])
def test_without_shuffle_batches_are_those_of_the_data_set_in_its_order(train: object, start: int) -> None:
    plain = train(0, 1).batch(4, drop_remainder=True).repeat().skip(start).take(5)
    assert first(5, train, sample_job(), start=start) == [batch.tolist() for batch in plain.as_numpy_iterator()]


@functools.cache
def unbroken(train: object, job_json: str) -> list[list[int]]:
    return first(12, train, Job.model_validate_json(job_json))


@pytest.mark.parametrize("train", [known(10), unknown(10), endless(10)])
@pytest.mark.parametrize("start", [1, 2, 5, 8])
def test_a_run_that_resumes_at_a_batch_reads_what_an_unbroken_run_would(train: object, start: int) -> None:
    job = sample_job(shuffle=6)
    whole = unbroken(train, job.model_dump_json())
    tf.random.set_seed(99)
    assert first(12 - start, train, job, start=start) == whole[start:]


def test_each_epoch_shuffles_each_example_into_another_place() -> None:
    read = first(6, known(8), sample_job(shuffle=8))
    epochs = [read[0] + read[1], read[2] + read[3], read[4] + read[5]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(8))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_depends_on_the_seed_and_on_the_shard() -> None:
    def same(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(40)

    orders = [first(10, same, sample_job(shuffle=40, seed=seed), shard, 2) for seed, shard in ((1, 0), (2, 0), (1, 1))]
    assert len({str(order) for order in orders}) == 3


@pytest.mark.parametrize(
    ("train", "seed"), [*[(known(8), seed) for seed in (0, 1, 2**31 - 1, 2**32 - 1)], (unknown(8), 0)]
)
def test_every_seed_shuffles(train: object, seed: int) -> None:
    read = first(4, train, sample_job(shuffle=8, seed=seed))
    epochs = [read[0] + read[1], read[2] + read[3]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(8))] * 2
    assert epochs != [list(range(8))] * 2
    assert read == first(4, train, sample_job(shuffle=8, seed=seed))


def test_a_shard_reads_its_own_examples() -> None:
    assert first(2, known(16), sample_job(), shard=1, shards=2) == [[1, 3, 5, 7], [9, 11, 13, 15]]


def test_whole_epochs_are_jumped_over_where_the_length_is_known() -> None:
    assert first(1, known(8), sample_job(), start=10**12 + 1) == [[4, 5, 6, 7]]


def test_batches_are_flattened_in_the_order_of_tf_nest() -> None:
    def examples(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(({"b": np.zeros((8, 2)), "a": np.ones((8, 3))}, np.arange(8)))

    a, b, y = next(batches(examples, sample_job(), 0, 1, 0))
    assert (a.shape, b.shape, y.tolist()) == ((4, 3), (4, 2), [0, 1, 2, 3])


def failing() -> Iterator[int]:
    yield 1
    raise ValueError("boom")


def fails(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(failing, output_signature=tf.TensorSpec([], tf.int64))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda shard, shards: [1, 2], "train(1, 2) returned list, expected tf.data.Dataset"),
        (lambda shard, shards: 1 / 0, "train(1, 2) raised ZeroDivisionError: division by zero"),
        (known(1), "the training data of shard 1 are empty"),
        (unknown(0), "the training data of shard 1 are empty"),
        (endless(0), "the training data of shard 1 are empty"),
        (known(6), "the training data of shard 1 have 3 examples, expected at least train.batch_size = 4"),
        (unknown(3), "the training data of shard 1 have 3 examples, expected at least train.batch_size = 4"),
        (fails, "reading the training data of shard 1 raised ValueError: boom"),
        (
            lambda shard, shards: tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [1, 2]])),
            "training examples hold a RaggedTensorSpec, expected dense tensors",
        ),
    ],
)
@pytest.mark.parametrize("shuffle", [0, 5])
def test_data_without_batches_are_told_in_one_line(train: object, message: str, shuffle: int) -> None:
    with pytest.raises(ProgramError) as caught:
        next(batches(train, sample_job(shuffle=shuffle), 1, 2, 0))
    assert str(caught.value).startswith(f"program 'program:build': {message}")
    assert "\n" not in str(caught.value)


def test_the_traceback_of_a_generator_begins_in_the_generator() -> None:
    with pytest.raises(ProgramError) as caught:
        next(batches(fails, sample_job(), 0, 1, 0))
    frames = [line for line in caught.value.details.splitlines() if line.startswith("  File")]
    assert len(frames) == 1
    assert frames[0].endswith("in failing")


def test_an_epoch_that_gives_nothing_after_others_ends_the_run() -> None:
    lengths = iter([8, 0, 0])

    def shrinking() -> Iterator[int]:
        yield from range(next(lengths))

    def train(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(shrinking, output_signature=tf.TensorSpec([], tf.int64))

    with pytest.raises(ProgramError, match="are empty, expected the same examples in every epoch"):
        first(3, train, sample_job())


def test_functions_of_the_program_that_block_are_named_at_the_deadline() -> None:
    gate = threading.Event()

    def blocks(*shard: int) -> tf.data.Dataset:
        gate.wait(30.0)
        return tf.data.Dataset.range(8)

    soon = Deadlines(stall_secs=0.01, first_batch_secs=0.02)
    job = sample_job().model_copy(update={"deadlines": soon})
    try:
        with pytest.raises(DataStallError, match=r"gave up after 0.02 s waiting for program .*: train\(1, 2\)"):
            next(batches(blocks, job, 1, 2, 0))
        with pytest.raises(DataStallError, match=r"gave up after 0.02 s waiting for program .*: evaluate\(\)"):
            evaluation_batches(program(known(8), blocks), job, NUMBERS)
    finally:
        gate.set()


def test_evaluation_data_are_read_whole() -> None:
    read = evaluation_batches(program(known(8), lambda: tf.data.Dataset.range(6)), sample_job(), NUMBERS)
    assert [batch.tolist() for batch in read.as_numpy_iterator()] == [[0, 1, 2, 3], [4, 5]]


def test_a_program_without_evaluation_has_none() -> None:
    assert evaluation_batches(program(known(8)), sample_job(), NUMBERS) is None


@pytest.mark.parametrize(
    ("training", "example"),
    [
        ([None, 8], (8,)),
        ([None, 8], (4, 3)),
        ([None, 28, 28], (28, 28, 1)),
        ([None, 8], (4, 2, 8)),
        (None, (4, 8)),
    ],
)
def test_examples_of_evaluation_that_are_no_batches_of_examples_are_left_to_the_program(
    training: list[int | None] | None, example: tuple[int, ...]
) -> None:
    """They may have a dimension more for another reason."""
    evaluate = lambda: tf.data.Dataset.from_tensors(np.zeros(example, np.float32))  # noqa: E731
    batches = evaluation_batches(program(known(8), evaluate), sample_job(), tf.TensorSpec(training, tf.float32))
    assert batches is not None
    assert batches.element_spec.shape[1:] == example


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (lambda: tf.data.Dataset.range(0), "the evaluation data are empty"),
        (lambda: tf.data.Dataset.range(3).repeat(), "the evaluation data are endless"),
        (lambda: None, r"evaluate\(\) returned NoneType"),
        (lambda: fails(0, 1).skip(1), "reading the evaluation data raised ValueError: boom"),
    ],
)
def test_evaluation_data_that_cannot_be_read_are_told(evaluate: object, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        evaluation_batches(program(known(8), evaluate), sample_job(), NUMBERS)


def test_an_evaluation_set_of_other_tensors_is_refused_in_one_line() -> None:
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [1, 2]]))
    with pytest.raises(ProgramError, match="evaluating: a RaggedTensorSpec is there, expected dense tensors"):
        next(read(ragged, sample_job(), "evaluating"))


def test_every_dense_type_is_read_as_it_is() -> None:
    values = {
        "bytes": np.array([b"x", b"yy", b"z"], object),
        "flags": np.array([True, False, True]),
        "half": np.arange(3, dtype=np.float16),
        "pixels": np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
    }
    found = list(read(tf.data.Dataset.from_tensor_slices(values).batch(2), sample_job(), "reading"))
    assert [len(batch[0]) for batch in found] == [2, 1]
    for at, name in enumerate(sorted(values)):
        whole = np.concatenate([batch[at] for batch in found])
        assert whole.dtype == values[name].dtype
        assert np.array_equal(whole, values[name])
