"""What the shard asks of a mode, and what all modes do alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf import ShardVariables


class Updates(Protocol):
    """The update loop of one shard; graph built by the constructor, run by the methods."""

    optimizer: v1.train.Optimizer

    def start(self, session: v1.Session) -> None:
        """Readies the accumulators and queues; variables hold their values already."""

    def advance(self, hold: bool) -> int:
        """Waits for gradients and applies them. With `hold`, sync workers stay at the barrier until `release_barrier`.

        Returns:
            The global_step of the shard afterwards.

        Raises:
            tf.errors.OpError: The session was closed.
        """

    def release_barrier(self) -> None:
        """Lets held workers go on."""


def send_tokens(variables: ShardVariables, global_step: tf.Tensor, chosen: tf.Tensor | None = None) -> tf.Operation:
    """Puts a token into the queue of each worker whose queue is empty.

    A token is only a wake-up: the worker looks at `global_step` itself, so a token that is left over misleads nobody, and
    one token is as good as many. A queue holds 0 or 1, and only the ps adds: this never blocks.

    Args:
        variables: The shard.
        global_step: int64 scalar that goes into the token.
        chosen: int32 scalar, the only worker to send_tokens; None: all of them.
    """
    puts: list[tf.Operation] = []
    for worker, queue in enumerate(variables.tokens):
        # Not before the global_step: a queue that was full while the ps waited for a gradient may be empty by now.
        with tf.control_dependencies([global_step]):
            count = 1 - queue.size()
        if chosen is not None:
            count *= tf.cast(tf.equal(chosen, worker), tf.int32)
        puts.append(queue.enqueue_many(tf.fill([count], global_step)))
    return tf.group(*puts)


def contributor_mask(variables: ShardVariables, gradient: tf.Tensor) -> tf.Tensor:
    """Whose gradients are in a gradient of the first bucket: int64 `[slots]` of zeros and ones."""
    start = variables.bucket_sizes[0]
    tail: tf.Tensor = gradient[start : start + variables.worker_limit]
    return tf.cast(tail > 0, tf.int64)


def timed(variables: ShardVariables, gradients: Sequence[Any], update: Callable[[], tf.Operation]) -> tf.Operation:
    """An update that also adds to the shard's `update_secs` the time from its last gradient to its own end.

    No bucket waits for the gradient of another.
    """
    with tf.control_dependencies(gradients):
        started = tf.timestamp()
    updated = update()
    with tf.control_dependencies([started, updated]):
        took = tf.timestamp() - started
    return variables.update_secs.assign_add(took, read_value=False)


def slot_values(optimizer: v1.train.Optimizer, buckets: Sequence[tf.Variable]) -> dict[str, list[tf.Variable]]:
    """The optimizer's slot variables by slot name, one for each bucket."""
    return {name: [optimizer.get_slot(bucket, name) for bucket in buckets] for name in optimizer.get_slot_names()}
