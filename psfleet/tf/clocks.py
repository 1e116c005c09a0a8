"""Clocks of the workers in ssp mode: how many steps each has made, as ps 0 counts them.

A worker is counted from its first step in a session on, as long as it is alive and has a session. One that comes in, or
comes back, starts at the lowest clock of those that are counted: nobody waits for the steps that it has missed. It
gains none either: one that was ahead of that starts at its own clock.
"""

from __future__ import annotations

from typing import Final

import tensorflow as tf

NOT_COUNTED: Final = -1
"""The clock of a worker that was never counted; nobody waits for one with this clock or a lower one."""


def excluded(clock: tf.Tensor) -> tf.Tensor:
    """The clock of a counted worker when it is not counted any longer: below `NOT_COUNTED`; the inverse of itself."""
    return 2 * NOT_COUNTED - clock


def lowest_clock(clocks: tf.Tensor) -> tf.Tensor:
    """The clock of the slowest worker that is counted, int64 scalar; 0 if there is none.

    Args:
        clocks: int64 `[worker_limit]`.
    """
    is_counted = clocks > NOT_COUNTED
    lowest = tf.reduce_min(tf.where(is_counted, clocks, tf.fill(tf.shape(clocks), clocks.dtype.max)))
    return tf.where(tf.reduce_any(is_counted), lowest, tf.zeros_like(lowest))


def counted_clock(clocks: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """A worker's own clock, int64 scalar; if the worker is not counted, the clock at which it starts.

    If nobody is counted, that is the highest clock that anybody had: others that come back would else wait for the
    steps that this worker has missed.
    """
    any_counted = tf.reduce_any(clocks > NOT_COUNTED)
    start = tf.where(any_counted, lowest_clock(clocks), tf.maximum(tf.reduce_max(excluded(clocks)), 0))
    return tf.where(own > NOT_COUNTED, own, tf.maximum(excluded(own), start))
