"""Tensors of several types in a vector of bytes, inside a graph."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.layout import FlatLayout


def as_bytes(tensor: tf.Tensor) -> tf.Tensor:
    """The elements of a tensor as uint8 `[bytes]`."""
    raw = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tf.bitcast(tensor, tf.uint8)
    return tf.reshape(raw, [-1])


def from_bytes(raw: tf.Tensor, dtype: tf.DType | str) -> tf.Tensor:
    """The inverse of `as_bytes`: uint8 `[bytes]` as `[size]` of a type."""
    dtype = tf.dtypes.as_dtype(dtype)
    if dtype == tf.bool:
        return tf.cast(raw, tf.bool)
    return tf.bitcast(tf.reshape(raw, [-1, dtype.size]) if dtype.size > 1 else raw, dtype)


def pack(flat: FlatLayout, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tensors in the order of a layout as its vector, uint8 `[flat.size]`; gaps and tail are zeros."""
    parts: list[tf.Tensor] = []
    at = 0
    for spec, offset, tensor in zip(flat.specs, flat.offsets, tensors, strict=True):
        if offset > at:
            parts.append(tf.zeros([offset - at], tf.uint8))
        parts.append(as_bytes(tensor))
        at = offset + spec.num_bytes
    if flat.size > at:
        parts.append(tf.zeros([flat.size - at], tf.uint8))
    return tf.concat(parts, 0) if parts else tf.zeros([0], tf.uint8)


def unpack(flat: FlatLayout, vector: tf.Tensor) -> list[tf.Tensor]:
    """The tensors of a layout's vector, uint8 `[flat.size]`; they share its memory, except for bool."""
    return [
        tf.reshape(from_bytes(vector[offset : offset + spec.num_bytes], spec.dtype), spec.shape)
        for spec, offset in zip(flat.specs, flat.offsets, strict=True)
    ]
