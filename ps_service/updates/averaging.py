"""Averaging mode: each round replaces the weights by the mean of those of `quorum` workers, after their own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.sync import SyncUpdates
from psfleet.tf import ShardVariables


class Average(v1.train.Optimizer):
    """Applies the means over workers: subtracts those of the ways that weights went, and assigns those of slots.

    A worker pushes by how much its weights fell in a round, not the weights: that is as exact as a gradient where
    `update.wire` rounds, and the ps keeps what the wire does not carry. The mean of slots is one of values, because one
    that is never negative must stay so.

    Args of the constructor:
        next_step: The global step after the update that begins at a global step, int64 scalars.
    """

    def __init__(self, variables: ShardVariables, next_step: Callable[[Any], Any]) -> None:
        super().__init__(use_locking=False, name="Average")
        self._weights = {id(bucket) for bucket in variables.buckets}
        self._next_step = next_step

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> tf.Operation:
        """See tf.compat.v1.train.Optimizer."""
        moved = [
            variable.assign_sub(mean, read_value=False)
            if id(variable) in self._weights
            else variable.assign(mean, read_value=False)
            for mean, variable in grads_and_vars
        ]
        with tf.control_dependencies(moved):
            after = self._next_step(global_step.read_value())
        return global_step.assign(after, read_value=False)


class AveragingUpdates(SyncUpdates):
    """The updates of sync mode with `Average` as the optimizer; the accumulators hold slots, too."""

    def __init__(
        self, variables: ShardVariables, quorum: int, num_replicas: int, next_step: Callable[[Any], Any]
    ) -> None:
        super().__init__([(variables, Average(variables, next_step))], quorum, num_replicas, next_step)
