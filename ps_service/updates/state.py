"""State in an update: the mean over the workers for floating point tensors, the chief's value for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from ps_service.worker_record import CHIEF
from psfleet.job.job import Job
from psfleet.layout import StateRange
from psfleet.tf import ShardVariables
from psfleet.tf.byte_vectors import as_bytes, from_bytes


class StateUpdate:
    """The next state of a shard from those that workers push with their gradients.

    A state is a list of one uint8 `[state shard size]`; for a shard without state all lists are empty, and no operation
    is added to the graph.
    """

    def __init__(self, variables: ShardVariables) -> None:
        self._state = variables.state
        self._ranges = variables.state_ranges

    def initial_means(self) -> list[tf.Tensor]:
        """The means before the first push, one for each range: the values of the shard."""
        if not self._ranges:
            return []
        present = self._state.read_value()
        return [_values(present, part) for part in self._ranges]

    def added(
        self,
        means: Sequence[tf.Tensor],
        pushed: Sequence[tf.Tensor],
        worker: tf.Tensor,
        is_admitted: tf.Tensor,
        contributors: tf.Tensor,
    ) -> list[tf.Tensor]:
        """The means after a push of `worker`, int32 scalar: as they were unless `is_admitted`, bool scalar.

        Args:
            contributors: int64 `[worker_limit]`, whose sum is the number of gradients admitted before.
        """
        if not self._ranges:
            return []
        number = tf.reduce_sum(contributors) + 1
        after = []
        for part, mean in zip(self._ranges, means, strict=True):
            new = _values(pushed[0], part)
            if part.float_dtype:
                moved = tf.where(is_admitted, _moved(mean, new, 1 / tf.cast(number, mean.dtype)), mean)
            else:
                moved = tf.where(is_admitted & tf.equal(worker, CHIEF), new, mean)
            after.append(moved)
        return after

    def joined(self, means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The state after a step, from the means over all its workers."""
        if not means:
            return []
        pairs = zip(self._ranges, means, strict=True)
        parts = [as_bytes(tf.cast(value, part.float_dtype)) if part.float_dtype else value for part, value in pairs]
        return [tf.concat(parts, 0) if len(parts) > 1 else parts[0]]

    def moved(self, pushed: Sequence[tf.Tensor], worker: tf.Tensor, share: tf.Tensor | float) -> list[tf.Tensor]:
        """The state after a single gradient: floating point numbers go a share of the way to those pushed.

        With 1 / workers, as many gradients as there are workers weigh as much as their mean. The result lies between
        values that were pushed, however stale they are: a variance stays positive.

        Args:
            share: float32 scalar.
        """
        if not self._ranges:
            return []
        present = self._state.read_value()
        after = []
        for part in self._ranges:
            old, new = _values(present, part), _values(pushed[0], part)
            if part.float_dtype:
                after.append(_moved(old, new, tf.cast(share, old.dtype)))
            else:
                after.append(tf.where(tf.equal(worker, CHIEF), new, old))
        return self.joined(after)


def state_share(job: Job) -> Callable[[tf.Tensor], tf.Tensor]:
    """The share of `StateUpdate.moved` in async mode, by the global step (int64 scalar) before the gradient.

    It is 1 during the warm-up, when the chief trains alone.
    """
    return lambda global_step: tf.where(global_step < job.update.warmup_steps, 1.0, 1.0 / job.fleet.regular_replicas)


def _moved(old: tf.Tensor, new: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """`old + share * (new - old)`; with a share of 1 / n the running mean after its n-th value.

    Equal numbers keep their bits, and so does `new` with a share of 1. A sum that is divided at the end would change
    equal numbers, as (x + x + x) / 3 does, and could overflow; so could `new - old`.

    Args:
        share: Scalar of the type of both.
    """
    between = tf.where(tf.equal(old, new), old, old + (new * share - old * share))
    return tf.where(share < 1, between, new)


def _values(state: tf.Tensor, part: StateRange) -> tf.Tensor:
    """The bytes of a range; of floating point numbers their values, in at least 32 bits: halves would be rounded."""
    raw = state[part.start : part.stop]
    if part.float_dtype is None:
        return raw
    values = from_bytes(raw, part.float_dtype)
    return tf.cast(values, tf.float32) if values.dtype.size < tf.float32.size else values
