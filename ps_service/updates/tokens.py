"""Tokens: the messages of a ps that end the waits of workers."""

from __future__ import annotations

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf import ShardVariables


class TokenSender:
    """Sends tokens to the workers' queues.

    A token only ends a wait: the worker then reads the global step itself, so a token that is left over is harmless.

    The cost of a step depends on the workers that wait, not on the number of queues (`TokenQueues`).

    In sync mode a worker that must wait puts its index in `waiting`, reads the global step once more, and waits for a
    token only if the step has not ended yet. No wake-up is lost:

    - The end of a step changes the global step first, and then reads `waiting`. A worker that saw the old global step
      after it had registered is therefore in `waiting` when that is read, unless the end of an earlier step has
      removed it, which then sent it a token.
    - Each worker index has a queue of its own. Only the wait of a process that had the index before can take its token;
      such a wait ends with its step, or at the deadline of a step, and each of both has registered for a token. A wait
      that a token of an earlier step ends too soon starts over, registration included.
    - A worker that dies leaves a registration or a token. Its successor's first wait takes the token and starts over.

    In async mode the same holds for the number of a worker's newest gradient in place of the global step, and for
    `registered`, which counts the waits of each worker, in place of `waiting`: only the worker whose gradient was
    applied or dropped gets tokens. An exhaustive search of the interleavings of a ps, a worker that makes two steps,
    and a successor that makes two while the wait of the first one is pending or cancelled (32,108 states), found no
    lost wake-up; with one token, or without registrations, it finds some.

    Args of the constructor:
        max_tokens: A queue that holds so many gets no more. Only this ps enqueues, so sending never blocks.
    """

    def __init__(self, variables: ShardVariables, max_tokens: int) -> None:
        self._variables = variables
        self._max_tokens = max_tokens
        self.initializer = variables.tokens.initializer()

    def send(self, worker: tf.Tensor, global_step: tf.Tensor, most: tf.Tensor | int = 1) -> tf.Operation:
        """Sends a token to one worker, after an update.

        Args:
            worker: int32 scalar.
            global_step: int64 scalar after the update, the value of the token.
            most: How many, int32 scalar, unless its queue is full before.
        """
        with tf.control_dependencies([global_step]):
            queue = self._variables.tokens.handle(worker)
            # Read after the update: a queue that was full while the ps waited for a gradient may be empty now.
            count = tf.clip_by_value(self._max_tokens - tf.raw_ops.QueueSizeV2(handle=queue), 0, most)
        return tf.raw_ops.QueueEnqueueManyV2(handle=queue, components=[tf.fill([count], global_step)])

    def answer(self, worker: tf.Tensor, global_step: tf.Tensor) -> tf.Operation:
        """Sends a token to each wait of one worker that has registered in `registered`; otherwise as `send`."""
        registered = self._variables.registered
        with tf.control_dependencies([global_step]):
            number = registered.read_element(worker)
        with tf.control_dependencies([registered.add_at([worker], -number)]):
            return self.send(worker, tf.identity(global_step), tf.cast(number, tf.int32))

    def release(self, global_step: tf.Tensor) -> tf.Operation:
        """Sends a token to each registered worker, after an update that led to `global_step`: int64 scalar."""
        waiting = self._variables.waiting
        with tf.control_dependencies([global_step]):
            count = waiting.size()
        workers = waiting.dequeue_many(count)

        def send(index: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([self.send(workers[index], global_step)]):
                return index + 1

        return v1.while_loop(lambda index: index < count, send, [tf.constant(0)], parallel_iterations=1).op
