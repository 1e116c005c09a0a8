"""The flat vector inside a graph: slices it into parameters, and lays gradients out in its order."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence

import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.layout import FlatLayout, TensorSpec
from psfleet.layout.buckets import Bucket, offsets_of_loss, specs_of_loss


def slices(layout: FlatLayout, pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors of a vector `[layout.size]` float32, each with its own shape.

    Args:
        pieces: The vector, divided. A tensor in one piece shares its memory if it is aligned; others are copied.
    """
    bounds = [0, *itertools.accumulate(piece.shape[0] for piece in pieces)]
    found = []
    for spec, offset in zip(layout.specs, layout.offsets, strict=True):
        # Those of them that have elements of it; of an empty tensor that in which it begins.
        first = bisect.bisect_right(bounds, offset, hi=len(pieces)) - 1
        last = max(first, bisect.bisect_left(bounds, offset + spec.size) - 1)
        parts = []
        for number in range(first, last + 1):
            low, high = max(offset, bounds[number]), min(offset + spec.size, bounds[number + 1])
            parts.append(tf.slice(pieces[number], [low - bounds[number]], [high - low]))
        value = tf.concat(parts, 0) if len(parts) > 1 else parts[0]
        found.append(tf.reshape(value, spec.shape, name=operation_name(spec)))
    return found


def operation_name(spec: TensorSpec) -> str:
    """The tensor's name as one of an operation, which may have other characters, and begins with a letter or digit."""
    name = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", spec.name.replace("#", "__"))
    return name if name[0].isalnum() else f"parameter{name}"


def require_any(program: str, loss: str, gradients: Sequence[object], scope: str = "") -> None:
    """Checks that a loss depends on one of the tensors that it may move: otherwise it would train nothing.

    Args:
        program: The job's `program`, for the message.
        loss: Its name in the message.
        gradients: With respect to these tensors; None where it does not depend on one.
        scope: Of its trainable variables, if it has one of its own.

    Raises:
        ProgramError: It depends on none.
    """
    if all(gradient is None for gradient in gradients):
        where = f" under its scope {scope}" if scope else ""
        raise ProgramError(
            f"program {program!r}: {loss} depends on no trainable variable{where}, expected at least one"
        )


def dense(specs: Sequence[TensorSpec], gradients: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> list[tf.Tensor]:
    """Gradients of tensors, each as `[size]` float32; None is zeros."""
    return [
        tf.zeros([spec.size]) if gradient is None else tf.reshape(_summed(gradient, spec.shape), [spec.size])
        for spec, gradient in zip(specs, gradients, strict=True)
    ]


def elements(layout: FlatLayout, tensors: Sequence[tf.Tensor], bucket: Bucket) -> list[tf.Tensor]:
    """The elements of a bucket in the vector in which the tensors of its loss, each `[size]` float32, are laid out."""
    parts: list[tf.Tensor] = []
    at, low, high = bucket.start, bucket.start, bucket.stop
    specs, offsets = specs_of_loss(layout, bucket.loss), offsets_of_loss(layout, bucket.loss)
    for spec, offset, tensor in zip(specs, offsets, tensors, strict=True):
        start, stop = max(low, offset), min(high, offset + spec.size)
        if start >= stop:
            continue
        if start > at:
            parts.append(tf.zeros([start - at]))
        parts.append(tensor[start - offset : stop - offset] if stop - start < spec.size else tensor)
        at = stop
    if high > at:
        parts.append(tf.zeros([high - at]))
    return parts


def _summed(gradient: tf.Tensor | tf.IndexedSlices, shape: tuple[int, ...]) -> tf.Tensor:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values = tf.reshape(gradient.values, [-1, *shape[1:]])
    return tf.math.unsorted_segment_sum(values, tf.reshape(gradient.indices, [-1]), shape[0])
