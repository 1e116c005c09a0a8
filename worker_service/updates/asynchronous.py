"""Async mode: a worker waits until each ps has applied or dropped the gradient that it has pushed there."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from psfleet.tf import ShardVariables
from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.interface import StepSession, one_gradient


class AsyncPart:
    """See `UpdatePart`."""

    has_one_local_step = False

    def on_arrival(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> list[tf.Operation]:
        """Nothing: the ps counts the staleness when it takes the gradient."""
        del variables, index, local_step
        return []

    def wait(self, variables: ShardVariables, index: int, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """For the token that the ps sends after this worker's gradient."""
        del local_step, number
        return variables.tokens[index].dequeue()

    def wait_to_begin(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> tf.Tensor:
        """Not at all."""
        del index, local_step
        return variables.global_step.read_value()

    def newest_number(self, variables: ShardVariables) -> tf.Variable:
        """A worker numbers its gradients."""
        return variables.last_number

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """Nothing."""
        del session, batches
        return start.shards

    def step(
        self, session: StepSession, batches: BatchSource, local_step: int
    ) -> tuple[Batch, float | None, np.ndarray]:
        """See `UpdatePart`."""
        return one_gradient(session, batches, local_step)
