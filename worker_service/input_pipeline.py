"""Reads data sets: their structure, their elements as NumPy arrays, and the evaluation data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.user_code import user_code
from psfleet.tf.batching import batched, check_buckets, check_padding, padding_explained
from psfleet.tf.program_data import PSFLEET_BATCHES, read_within_deadline
from worker_service.broken_records import broken_file_named

PREFETCHED_BATCHES = 2


def batch_spec(dataset: tf.data.Dataset, job: Job, batch_size: int | None) -> Any:
    """The structure of a batch: a `tf.TensorSpec` `[batch_size, ...]` for each tensor of an example.

    Raises:
        ProgramError: The examples hold something other than dense tensors, or tensors that the job cannot pad.
    """

    def of_batch(spec: Any) -> tf.TensorSpec:
        if not isinstance(spec, tf.TensorSpec):
            got = type(spec).__name__
            raise ProgramError(f"program {job.program!r}: training examples hold a {got}, expected dense tensors")
        return tf.TensorSpec(tf.TensorShape([batch_size]).concatenate(spec.shape), spec.dtype)

    found = tf.nest.map_structure(of_batch, dataset.element_spec)
    check_padding(dataset.element_spec, job, "training examples")
    check_buckets(dataset.element_spec, job)
    return found


def evaluation_batches(program: KerasProgram | GraphProgram, job: Job, training: Any) -> tf.data.Dataset | None:
    """The evaluation data in batches, the last of which may be smaller; None if the program has none.

    Args:
        training: The structure of a training batch.

    Raises:
        ProgramError: `evaluate` raised or returned something else, or the data are empty, endless, or batches already.
        DataStallError: The first example did not come in `deadlines.first_batch_secs`.
    """
    if program.evaluate is None:
        return None
    dataset = read_within_deadline(job, "evaluate()", program.evaluate)
    if not isinstance(dataset, tf.data.Dataset):
        got = type(dataset).__name__
        raise ProgramError(f"program {job.program!r}: evaluate() returned {got}, expected tf.data.Dataset")
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ProgramError(f"program {job.program!r}: the evaluation data are endless, expected no repeat()")
    if read_within_deadline(job, "reading the evaluation data", lambda: next(iter(dataset), None)) is None:
        raise ProgramError(f"program {job.program!r}: the evaluation data are empty, expected examples")
    check_padding(dataset.element_spec, job, "examples of evaluate()")
    batches = batched(dataset, job, job.evaluate.batch_size or job.train.batch_size).prefetch(PREFETCHED_BATCHES)
    _check_evaluation(job, training, batches.element_spec)
    return batches


def read(dataset: tf.data.Dataset, job: Job, what: str) -> Iterator[tuple[np.ndarray, ...]]:
    """The elements of a data set in `tf.nest.flatten` order, as NumPy arrays that share its memory.

    The operation below the iterator's `next` is called, which takes half of its time.

    Raises:
        ProgramError: The data set raised while doing `what`, or holds something other than dense tensors.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            got = type(spec).__name__
            raise ProgramError(f"program {job.program!r}: {what}: a {got} is there, expected dense tensors")
    dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
    with user_code(job, what):
        iterator = iter(dataset)
    while True:
        with broken_file_named(dataset), padding_explained(), user_code(job, what):
            try:
                batch = tf.raw_ops.IteratorGetNext(
                    iterator=iterator._iterator_resource, output_types=dtypes, output_shapes=shapes
                )
            except tf.errors.OutOfRangeError:
                return
        yield tuple(np.asarray(tensor) for tensor in batch)


def _check_evaluation(job: Job, training: Any, evaluation: Any) -> None:
    """Refuses evaluation data that are batches already, which many models would accept with a wrong result.

    Args:
        training: The structure of a training batch, `[batch, ...]` each.
        evaluation: The same of the evaluation data.

    Raises:
        ProgramError: The inputs of the evaluation have one dimension more than those of the training, before the same.
    """
    expected, found = (
        [spec.shape for spec in tf.nest.flatten(spec[0] if isinstance(spec, tuple) else spec)]
        for spec in (training, evaluation)
    )
    if any(shape.rank is None for shape in [*expected, *found]) or len(expected) != len(found):
        return
    # Keras removes a last dimension of 1 itself.
    if found[0][-1] != 1 and all(_is_batch_of(shape, own) for shape, own in zip(found, expected, strict=True)):
        examples, of_training = ([list(shape[1:]) for shape in shapes] for shapes in (found, expected))
        raise ProgramError(
            f"program {job.program!r}: examples of evaluate() have x of shape {examples}, expected {of_training} as in "
            f"training; {PSFLEET_BATCHES}"
        )


def _is_batch_of(shape: tf.TensorShape, own: tf.TensorShape) -> bool:
    """Whether examples of a batch of one shape may be batches of those of the other."""
    return shape.rank == own.rank + 1 and shape[2:].is_compatible_with(own[1:])


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Read ahead, in a fixed order, without threads that tune themselves."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    return batches.prefetch(PREFETCHED_BATCHES).with_options(options)
