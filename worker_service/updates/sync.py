"""Sync mode: a worker waits until each shard's global step is above that of the gradient that it has pushed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from psfleet.tf import STALENESS_BUCKETS, ShardVariables
from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.interface import StepSession, is_done, one_gradient, pass_barrier


class SyncPart:
    """See `UpdatePart`."""

    has_one_local_step = True

    def on_arrival(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> list[tf.Operation]:
        """Counts by how many updates a gradient is late when it arrives."""
        late = tf.clip_by_value(variables.global_step.read_value() - local_step, 0, STALENESS_BUCKETS - 1)
        return [variables.staleness.add_at([tf.constant(index, tf.int64), late], tf.constant(1, tf.int64))]

    def wait(self, variables: ShardVariables, index: int, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Until the shard's global step is above `local_step`."""
        del number
        return pass_barrier(variables, index, variables.global_step.read_value, lambda step: step > local_step)

    def wait_to_begin(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> tf.Tensor:
        """As after a push, which an earlier session has made."""
        return self.wait(variables, index, local_step, local_step)

    def newest_number(self, variables: ShardVariables) -> tf.Variable:
        """A gradient's number is its local step."""
        return variables.last_local_step

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """Waits for the end of a step whose gradient every ps has already, from an earlier session."""
        del batches
        if start.global_step <= start.numbers.min() and not is_done(start.shards):
            return session.await_step(start.global_step)
        return start.shards

    def step(
        self, session: StepSession, batches: BatchSource, local_step: int
    ) -> tuple[Batch, float | None, np.ndarray]:
        """See `UpdatePart`."""
        return one_gradient(session, batches, local_step)
