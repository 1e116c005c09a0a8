"""Interface of a mode's update loop, and the graph operations that all modes share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf import ShardVariables, secs_since
from psfleet.tf.own_session import OwnSession


class Updates(Protocol):
    """The update loop of one shard; graph built by the constructor, run by the methods.

    Attributes:
        optimizers: Of each segment.
    """

    optimizers: list[v1.train.Optimizer]

    def start(self, session: OwnSession) -> None:
        """Initializes accumulators and queues, after the variables have been restored.

        Prepares what a step with `hold` runs: the workers wait for it.
        """

    def advance(self, hold: bool) -> int:
        """Waits for gradients and applies them. With `hold`, sync workers wait at the barrier until `release_barrier`.

        Returns:
            The global step of the shard afterwards.

        Raises:
            tf.errors.OpError: The session was closed.
        """

    def release_barrier(self) -> None:
        """Sends the tokens that `advance(hold=True)` did not send."""

    def set_present(self, workers: Collection[int]) -> None:
        """From now on no worker waits for others than these, which are alive and have a session; from any thread.

        Args:
            workers: Their indices.

        Raises:
            tf.errors.OpError, RuntimeError: The session was closed.
        """


@dataclass(frozen=True)
class Push:
    """One element of the shard's queue of gradients, as `worker_service.push_pull` sends it.

    Attributes:
        gradients: float32, one for each of `ShardVariables.exchanged`; zeros for the buckets of other losses.
        state: uint8 `[state shard size]`, in a list; empty for a shard without state.
        local_step: int64 scalar.
        number: Of the gradient, int64 scalar.
        worker: Index of the worker, int32 scalar.
        words: The optimizer's scalars after a round of averaging mode: int64 `[number of scalars]`.
        ticket: Of the rows that were staged with it, int64 `[1]`; `[0]` without tables.
    """

    gradients: list[tf.Tensor]
    state: list[tf.Tensor]
    local_step: tf.Tensor
    number: tf.Tensor
    worker: tf.Tensor
    words: tf.Tensor
    ticket: tf.Tensor


def next_push(variables: ShardVariables) -> Push:
    """Waits for the next push of a worker, and takes it from the queue."""
    *tensors, stamp, worker = variables.gradients.dequeue()
    number, words = len(variables.exchanged), 2 + len(variables.scalars)
    ticket = stamp[words:] if variables.has_tables else tf.zeros([0], tf.int64)
    return Push(tensors[:number], tensors[number:], stamp[0], stamp[1], worker, stamp[2:words], ticket)


def timed(variables: ShardVariables, gradients: Sequence[Any], update: Callable[[], tf.Operation]) -> tf.Operation:
    """An update that also adds its duration, from its last gradient to its end, to the shard's `update_secs`.

    Buckets are still updated independently: none waits for the gradient of another.
    """
    with tf.control_dependencies(gradients):
        started = tf.timestamp()
    updated = update()
    with tf.control_dependencies([started, updated]):
        took = secs_since(started)
    return variables.update_secs.assign_add(took, read_value=False)


def slot_values(optimizer: v1.train.Optimizer, buckets: Sequence[tf.Variable]) -> dict[str, list[tf.Variable]]:
    """The optimizer's slot variables by slot name, one for each bucket."""
    return {name: [optimizer.get_slot(bucket, name) for bucket in buckets] for name in optimizer.get_slot_names()}
