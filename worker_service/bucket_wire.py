"""What a push carries: the buckets of a loss in the wire type, and behind the first one state and numbers as bits."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.layout import FlatLayout
from psfleet.layout.buckets import Bucket
from worker_service.frontends.flat import elements


def sent_buckets(
    layout: FlatLayout,
    own: Sequence[Bucket],
    gradients: Sequence[tf.Tensor],
    wire: tf.DType,
    state: Sequence[tf.Tensor],
    stamp: tf.Tensor,
) -> list[tf.Tensor]:
    """On the worker: buckets of gradients in the wire type, whose gaps are zeros.

    Args:
        own: The buckets of one loss and shard. If there are none, the only tensor is what follows the first bucket.
        gradients: `[size]` float32 for each tensor of the loss.
        state: In the wire type, in a list; empty: none is sent.
        stamp: int64 vector, whose bits follow the state.
    """
    sent = [[tf.cast(part, wire) for part in elements(layout, gradients, bucket)] for bucket in own] or [[]]
    sent[0] += [*state, bits(stamp, wire)]
    return [tf.concat(bucket, 0) for bucket in sent]


def bits(integers: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Bitcasts int64 numbers to a vector of another type; only the bits have a meaning."""
    return tf.reshape(tf.bitcast(integers, dtype), [-1])


def numbers(vector: tf.Tensor, count: int) -> tf.Tensor:
    """The inverse of `bits`: int64 `[count]`."""
    return tf.bitcast(tf.reshape(vector, [count, -1]), tf.int64)
