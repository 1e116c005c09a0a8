"""Ssp mode: async updates, and clocks on ps 0 by which a fast worker waits for a slow one (Ho et al. 2013)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.asynchronous import AsyncUpdates
from ps_service.updates.tokens import TokenSender
from psfleet.tf import ShardVariables
from psfleet.tf.clocks import NOT_COUNTED, counted_clock, excluded, lowest_clock
from psfleet.tf.own_session import OwnSession


class SspUpdates(AsyncUpdates):
    """The updates of ps 0, which keeps the clocks of all workers; those of the other ps are `AsyncUpdates`.

    One ps keeps them, because two could count different steps for a worker that comes back, and then each of two
    workers could wait for the other.

    A worker waits at ps 0 until its gradient is applied or dropped and counted, and it is at most the bound ahead of
    the slowest worker that is counted; it evaluates that itself (`psfleet.tf.waits`), registered in
    `waiting`. What opens the barrier for a worker is followed by a token for it:

    - Its own gradient: the ps sends it a token when the gradient is done.
    - A gradient of the slowest worker: the ps sets that worker's clock, then reads the clocks of the others, and sends
      a token to each registered worker if the lowest clock has changed by it.
    - A slow worker that is not counted any longer: `set_present` sends a token to every worker afterwards. So it does
      not matter what the case above finds if this comes between its reads.
    - The final step: a token for each registered worker.
    """

    def _count(self, variables: ShardVariables, sender: TokenSender, worker: tf.Tensor, is_new: tf.Tensor) -> tf.Tensor:
        """Advances the worker's clock, unless it has repeated a gradient."""
        # Not a part of the update, which waits for gradients.
        with tf.control_dependencies(None):
            self._build_set_present(variables, sender)
        before = variables.clocks.read_value()
        own = before[worker]
        made = counted_clock(before, own) + tf.cast(is_new, tf.int64)
        with tf.control_dependencies([variables.clocks.set_at([worker], made)]):
            now = variables.clocks.read_value()
            is_over = variables.global_step.read_value() >= variables.final_step.read_value()
        without_it = tf.tensor_scatter_nd_update(now, [[worker]], [own])
        return is_over | tf.not_equal(lowest_clock(now), lowest_clock(without_it))

    def _wake(self, sender: TokenSender, worker: tf.Tensor, after: tf.Tensor, opens: tf.Tensor) -> tf.Operation:
        """Sends a token to the worker, and if it `opens` their waits to all that are registered."""

        def release() -> tf.Tensor:
            with tf.control_dependencies([sender.release(tf.identity(after))]):
                return tf.identity(after)

        with tf.control_dependencies([after]):
            released = tf.cond(opens, release, lambda: tf.identity(after))
        return tf.group(sender.send(worker, after), released)

    def _build_set_present(self, variables: ShardVariables, sender: TokenSender) -> None:
        """The operation of `set_present`: changes no clock but those of workers that are gone."""
        limit = variables.worker_limit
        self._present = v1.placeholder(tf.bool, [limit])
        clocks = variables.clocks.read_value()
        gone = tf.where((clocks > NOT_COUNTED) & tf.logical_not(self._present))
        number = tf.shape(gone)[0]
        removed = tf.raw_ops.ResourceScatterNdUpdate(
            ref=variables.clocks.handle, indices=gone, updates=excluded(tf.gather_nd(clocks, gone))
        )
        with tf.control_dependencies([removed]):
            last = tf.where(number > 0, limit, 0)

        def send(index: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([sender.send(index, variables.global_step.read_value())]):
                return index + 1

        self._set_present = v1.while_loop(lambda index: index < last, send, [tf.constant(0)], parallel_iterations=1)

    def start(self, session: OwnSession) -> None:
        """See `Updates`."""
        super().start(session)
        self._exclude: Callable[..., Any] = session.prepared(self._set_present, self._present)

    def set_present(self, workers: Collection[int]) -> None:
        """See `Updates`."""
        # The run may have members that joined for a job with a higher worker limit, and that have no clock here.
        self._exclude(np.isin(np.arange(self._present.shape[0]), list(workers)))
