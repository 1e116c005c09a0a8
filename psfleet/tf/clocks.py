"""Clocks of the workers in ssp mode: how many steps each has made, as ps 0 counts them.

A worker is counted from its first step in a session on, as long as it is alive and has a session. One that comes in, or
comes back, starts at the lowest clock of those that are counted: nobody waits for the steps that it has missed.
"""

from __future__ import annotations

from typing import Final

import tensorflow as tf

NOT_COUNTED: Final = -1
"""The clock of a worker for which nobody waits."""


def lowest_clock(clocks: tf.Tensor) -> tf.Tensor:
    """The clock of the slowest worker that is counted, int64 scalar; 0 if there is none.

    Args:
        clocks: int64 `[worker_limit]`.
    """
    is_counted = clocks > NOT_COUNTED
    lowest = tf.reduce_min(tf.where(is_counted, clocks, tf.fill(tf.shape(clocks), clocks.dtype.max)))
    return tf.where(tf.reduce_any(is_counted), lowest, tf.zeros_like(lowest))


def counted_clock(clocks: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """A worker's own clock, int64 scalar; the lowest one if the worker is not counted yet."""
    return tf.where(own > NOT_COUNTED, own, lowest_clock(clocks))
