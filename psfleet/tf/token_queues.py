"""The queues of tokens of a segment: a token ends a worker's wait, and it reads the global step again."""

from __future__ import annotations

import tensorflow as tf


class TokenQueues:
    """One queue for each worker, and a variable with their handles.

    With the variable, finding the queue of an index that is not known when the graph is built costs the same for any
    number of workers. The ps sets it.

    Args of the constructor:
        num_workers: How many there are.
        scope: Begins the names.
        container: Of the variable; that of the queues is the default one.

    Attributes:
        queues: By worker, of int64 scalars.
    """

    def __init__(self, num_workers: int, scope: str, container: str) -> None:
        self.queues = [
            tf.queue.FIFOQueue(-1, [tf.int64], shapes=[()], shared_name=f"{scope}/token_{worker}")
            for worker in range(num_workers)
        ]
        self._handles = tf.raw_ops.VarHandleOp(
            dtype=tf.resource, shape=[num_workers], container=container, shared_name=f"{scope}/token_queues"
        )

    def initializer(self) -> tf.Operation:
        """Sets the variable."""
        handles = tf.raw_ops.Pack(values=[queue.queue_ref for queue in self.queues])
        assigned: tf.Operation = tf.raw_ops.AssignVariableOp(resource=self._handles, value=handles)
        return assigned

    def handle(self, worker: tf.Tensor) -> tf.Tensor:
        """The handle of a worker's queue, by its index (int32 scalar)."""
        handles = tf.raw_ops.ReadVariableOp(resource=self._handles, dtype=tf.resource)
        return tf.raw_ops.GatherV2(params=handles, indices=worker, axis=0)

    def take(self, worker: tf.Tensor | int) -> tf.Tensor:
        """Waits for a token of a worker, by its index: int64 scalar."""
        if isinstance(worker, int):
            return self.queues[worker].dequeue()
        (token,) = tf.raw_ops.QueueDequeueV2(handle=self.handle(worker), component_types=[tf.int64])
        return tf.ensure_shape(token, [])
