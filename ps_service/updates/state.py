"""State in an update: the mean over the workers for floating point tensors, the chief's value for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.layout import StateRange
from psfleet.tf import ShardVariables
from psfleet.tf.byte_vectors import as_bytes, from_bytes

CHIEF = 0
"""Index of the worker whose integers and booleans are kept."""


class StateUpdate:
    """The next state of a shard from those that workers push with their gradients.

    A state is a list of one uint8 `[state shard size]`; for a shard without state all lists are empty, and no operation
    is added to the graph.
    """

    def __init__(self, variables: ShardVariables) -> None:
        self._state = variables.state
        self._ranges = variables.state_ranges

    def nothing(self) -> list[tf.Tensor]:
        """Totals before the first push, one for each range: zeros to add to, or the bytes that the shard has."""
        if not self._ranges:
            return []
        values = [_values(self._state.read_value(), part) for part in self._ranges]
        return [tf.zeros_like(v) if part.float_dtype else v for part, v in zip(self._ranges, values, strict=True)]

    def added(
        self, totals: Sequence[tf.Tensor], pushed: Sequence[tf.Tensor], worker: tf.Tensor, is_admitted: tf.Tensor
    ) -> list[tf.Tensor]:
        """The totals after a push of `worker`, int32 scalar: as they were unless `is_admitted`, bool scalar."""
        after = []
        for part, total in zip(self._ranges, totals, strict=True):
            new = _values(pushed[0], part)
            is_kept = is_admitted if part.float_dtype else is_admitted & tf.equal(worker, CHIEF)
            after.append(tf.where(is_kept, total + new if part.float_dtype else new, total))
        return after

    def mean(self, totals: Sequence[tf.Tensor], quorum: int) -> list[tf.Tensor]:
        """The state after a step of `quorum` workers."""
        parts = zip(self._ranges, totals, strict=True)
        return self._joined([total / quorum if part.float_dtype else total for part, total in parts])

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
                after.append(old + (new - old) * tf.cast(share, old.dtype))
            else:
                after.append(tf.where(tf.equal(worker, CHIEF), new, old))
        return self._joined(after)

    def _joined(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if not values:
            return []
        pairs = zip(self._ranges, values, strict=True)
        parts = [as_bytes(tf.cast(value, part.float_dtype)) if part.float_dtype else value for part, value in pairs]
        return [tf.concat(parts, 0) if len(parts) > 1 else parts[0]]


def state_share(job: Job) -> Callable[[tf.Tensor], tf.Tensor]:
    """The share of `StateUpdate.moved` in async mode, by the global step (int64 scalar) before the gradient.

    It is 1 during the warm-up, when the chief trains alone.
    """
    return lambda global_step: tf.where(global_step < job.update.warmup_steps, 1.0, 1.0 / job.fleet.workers)


def _values(state: tf.Tensor, part: StateRange) -> tf.Tensor:
    """The bytes of a range; of floating point numbers their values, in at least 32 bits: halves overflow in a sum."""
    raw = state[part.start : part.stop]
    if part.float_dtype is None:
        return raw
    values = from_bytes(raw, part.float_dtype)
    return tf.cast(values, tf.float32) if values.dtype.size < tf.float32.size else values
