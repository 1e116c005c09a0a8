"""Makes batches of examples as the job's `input` section says: padded, and of examples of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job

_UNEQUAL = "Cannot batch tensors with different shapes"
"""In TensorFlow's message about examples of different shapes in a batch that is not padded."""


def batched(examples: tf.data.Dataset, job: Job, batch_size: int, drop_remainder: bool = False) -> tf.data.Dataset:
    """Batches of consecutive examples, padded with `input.pad`: `[batch_size, ...]` each."""
    if job.input.pad:
        return examples.padded_batch(batch_size, drop_remainder=drop_remainder)
    return examples.batch(batch_size, drop_remainder=drop_remainder)


def training_batches(examples: tf.data.Dataset, job: Job) -> tf.data.Dataset:
    """Full batches of `train.gradient_examples`; those of each bucket by themselves with `input.bucket_boundaries`.

    The order is a function of the order of the examples. Examples at the end that do not fill a batch are dropped: of
    each bucket.
    """
    boundaries, batch_size = job.input.bucket_boundaries, job.train.gradient_examples
    if boundaries is None:
        return batched(examples, job, batch_size, drop_remainder=True)
    return examples.bucket_by_sequence_length(
        tf.autograph.experimental.do_not_convert(_length),
        boundaries,
        [batch_size] * (len(boundaries) + 1),
        drop_remainder=True,
    )


def check_padding(structure: Any, job: Job, which: str) -> None:
    """Refuses examples that the job cannot pad.

    Args:
        structure: Of an example: a type specification for each tensor.
        which: The examples, for messages.

    Raises:
        ProgramError: The examples hold something other than dense tensors of known rank.
    """
    if not job.input.pad:
        return
    specs = tf.nest.flatten(structure)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            got = type(spec).__name__
            raise ProgramError(f"program {job.program!r}: {which} hold a {got}, expected dense tensors with input.pad")
    if any(spec.shape.rank is None for spec in specs):
        expected = "a known rank of each with input.pad, and None for a size that differs"
        raise _bad_shapes(specs, job, which, expected)


def check_buckets(structure: Any, job: Job) -> None:
    """Raises ProgramError if the job has buckets, and training examples have no size that is unknown."""
    specs = tf.nest.flatten(structure)
    if job.input.bucket_boundaries is not None and all(spec.shape.is_fully_defined() for spec in specs):
        expected = "None for the sizes that differ with input.bucket_boundaries"
        raise _bad_shapes(specs, job, "training examples", expected)


@contextmanager
def padding_explained() -> Iterator[None]:
    """Adds to a ProgramError of the block that `input.pad` pads, if examples of a batch differ in their shapes."""
    try:
        yield
    except ProgramError as error:
        if _UNEQUAL not in str(error):
            raise
        message = str(error).removesuffix(".")
        raise ProgramError(f"{message}; input.pad: true in the job file pads them", error.details) from error


def _bad_shapes(specs: Sequence[tf.TensorSpec], job: Job, which: str, expected: str) -> ProgramError:
    shapes = ", ".join(str(spec.shape) for spec in specs)
    return ProgramError(f"program {job.program!r}: {which} have the shapes {shapes}, expected {expected}")


def _length(*example: Any) -> tf.Tensor:
    """The largest of an example's sizes that are unknown in its shapes; int32 scalar."""
    tensors = tf.nest.flatten(example)
    sizes = [
        tf.shape(tensor)[axis] for tensor in tensors for axis, size in enumerate(tensor.shape.as_list()) if size is None
    ]
    return tf.reduce_max(tf.stack(sizes))


def of_all_batches(tensor: Any) -> tf.TensorSpec:
    """The specification `[None, ...]` of batches of any number of examples.

    Args:
        tensor: `[batch, ...]`, a tensor, a `KerasTensor` or a specification.
    """
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
