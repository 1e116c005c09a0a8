"""Interface of a worker's part in the updates of a mode, and the barrier that modes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf import ShardVariables
from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart


class StepSession(Protocol):
    """The part of a session that makes steps; see `worker_service.session.WorkerSession`."""

    def train(self, batch: Sequence[np.ndarray], local_step: int, number: int) -> tuple[float | None, np.ndarray]:
        """Pushes the gradient of a batch, and pulls; without a loss it has pushed none."""

    def update_locally(self, batch: Sequence[np.ndarray], number: int) -> float:
        """Makes an update of this worker's own parameters."""

    def exchange(self, local_step: int) -> np.ndarray:
        """Pushes what these updates have made, and pulls."""

    def await_step(self, local_step: int) -> np.ndarray:
        """Waits for the end of a step whose gradient is pushed already, and pulls."""


class UpdatePart(Protocol):
    """What a worker does in a step, as far as it depends on the mode.

    The first four methods add operations to the worker's graph, on the device of a ps; `index` is the worker's, and
    `local_step` and `number`, int64 scalars, are those of the gradient. The others are called by the training loop.

    Attributes:
        has_one_local_step: Whether every ps gets one local step, the lowest; else each gets that of its own shard.
    """

    has_one_local_step: bool

    def on_arrival(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> list[tf.Operation]:
        """Operations between the arrival of a push and its way into the queue."""

    def wait(self, variables: ShardVariables, index: int, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Ends when the worker may pull, after its push."""

    def wait_to_begin(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> tf.Tensor:
        """Ends when the worker may pull, at the beginning of a session (`StepGraph.await_step`)."""

    def newest_number(self, variables: ShardVariables) -> tf.Variable:
        """By worker, the number of its newest gradient: int64 `[worker_limit]`."""

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """What comes before the first step of a session; the shards after it, as in `start` if there is nothing."""

    def step(
        self, session: StepSession, batches: BatchSource, local_step: int
    ) -> tuple[Batch, float | None, np.ndarray]:
        """Reads batches and makes one step.

        Returns:
            The newest batch; the loss, None if the step was abandoned; global step and final step of each shard, int64
            `[num_ps, 2]`.
        """


def one_gradient(session: StepSession, batches: BatchSource, local_step: int) -> tuple[Batch, float | None, np.ndarray]:
    """A step of the modes in which a worker pushes the gradient of one batch; see `UpdatePart.step`."""
    number = batches.numbers.next(local_step)
    batch = batches.at(number)
    loss, shards = session.train(batch, local_step, number)
    batches.numbers.pushed()
    return batch, loss, shards


def is_done(shards: np.ndarray) -> bool:
    """Whether every shard has reached its final step; int64 `[num_ps, 2]`."""
    return all(global_step >= final_step for global_step, final_step in shards.tolist())


def pass_barrier(
    variables: ShardVariables, index: int, read: Callable[[], tf.Tensor], is_open: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """A loop on the ps that waits for this worker's tokens until what it reads there opens the barrier.

    Before each wait it registers for a token and then reads again, so that it cannot miss an update; see
    `ps_service.updates.tokens`.

    Returns:
        What it has read last.
    """

    def wait() -> tf.Tensor:
        with tf.control_dependencies([variables.tokens[index].dequeue()]):
            return read()

    def register(value: tf.Tensor) -> tf.Tensor:
        del value
        with tf.control_dependencies([variables.waiting.enqueue(index)]):
            registered = read()
        return tf.cond(is_open(registered), lambda: tf.identity(registered), wait)

    return v1.while_loop(lambda value: tf.logical_not(is_open(value)), register, [read()], parallel_iterations=1)
