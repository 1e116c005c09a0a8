"""Async mode: each gradient is one update, unless the policy for stale gradients drops it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.interface import next_push, timed
from ps_service.updates.state import StateUpdate
from ps_service.updates.table_update import TableUpdate
from ps_service.updates.tokens import TokenSender
from psfleet.job.update import Stale
from psfleet.tf import STALENESS_BUCKETS, ShardVariables
from psfleet.tf.own_session import OwnSession


class StalePolicy:
    """How a gradient is applied, by its staleness (int64 scalar).

    Attributes:
        is_used: bool scalar; False: it is dropped.
        rate_factor: float32 scalar, multiplies the learning rate.
        gradient_factor: float32 scalar, multiplies the gradient.
    """

    def __init__(self, stale: Stale, staleness: tf.Tensor) -> None:
        late = tf.cast(staleness, tf.float32)
        is_stale = staleness > stale.bound
        one = tf.constant(1.0)
        self.is_used = tf.logical_not(is_stale) if stale.policy == "drop" else tf.constant(True)
        self.rate_factor = 1.0 / (1.0 + late) if stale.policy == "lower_rate" else one
        self.gradient_factor = one
        if stale.policy == "scale":
            self.gradient_factor = tf.where(is_stale, stale.bound / tf.maximum(late, 1.0), one)


class AsyncUpdates:
    """Applies gradients from the queue one at a time, each number of a worker at most once.

    A worker's numbers only grow. One that is not above the newest comes from a worker that was restarted after its
    push, or from a process that has been replaced: it is dropped.

    Attributes:
        max_tokens: Of a worker's queue; see `TokenSender`.

    Args of the constructor:
        make_optimizer: Builds the optimizer at a factor (float32 scalar) of the scheduled learning rate, for a gradient
            of a number (int64 scalar).
        state_share: Returns, at a global step (int64 scalar), the share of `StateUpdate.moved`.
        tables: Their update; None: there are none.
    """

    max_tokens = 2

    def __init__(
        self,
        variables: ShardVariables,
        make_optimizer: Callable[[tf.Tensor, tf.Tensor], v1.train.Optimizer],
        stale: Stale,
        state_share: Callable[[tf.Tensor], tf.Tensor],
        tables: TableUpdate | None = None,
    ) -> None:
        push = next_push(variables)
        worker = push.worker
        local_step, number = push.local_step, push.number
        with tf.control_dependencies([local_step]):
            global_step = variables.global_step.read_value()
            newest = variables.last_number.read_element(worker)
        staleness = global_step - local_step
        policy = StalePolicy(stale, staleness)
        is_used = policy.is_used & (number > newest) & (global_step < variables.final_step.read_value())
        self.optimizers = [make_optimizer(policy.rate_factor, number)]
        entry = tf.cast(tf.minimum(staleness, STALENESS_BUCKETS - 1), tf.int32)
        counted = [
            variables.last_local_step.set_at([worker], local_step),
            variables.used.add_at([worker], tf.cast(is_used, tf.int64)),
            variables.staleness.add_at([worker, entry], tf.constant(1, tf.int64)),
        ]

        def apply() -> tf.Tensor:
            gradients = push.gradients
            if stale.policy == "scale":
                gradients = [gradient * policy.gradient_factor for gradient in gradients]
            pairs = list(zip(gradients, variables.buckets, strict=True))
            new_state = StateUpdate(variables).moved(push.state, worker, state_share(global_step))
            written = [variables.state.assign(state, read_value=False) for state in new_state]
            if tables is not None:
                written += tables.of_tickets(push.ticket, policy.rate_factor, policy.gradient_factor)
            with v1.container(variables.container), tf.control_dependencies(written):
                update = timed(
                    variables, push.gradients, lambda: self.optimizers[0].apply_gradients(pairs, variables.global_step)
                )
            with tf.control_dependencies([update]):
                return variables.global_step.read_value()

        def drop() -> tf.Tensor:
            with tf.control_dependencies([] if tables is None else tables.dropped(worker, number)):
                return tf.identity(global_step)

        with tf.control_dependencies(counted):
            updated = tf.cond(is_used, apply, drop)
        sender = TokenSender(variables, self.max_tokens)
        self._ready = sender.initializer
        with tf.control_dependencies([updated]):
            opens = self._count(variables, sender, worker, number > newest)
        # Last: a worker that reads its own number there finds its gradient applied or dropped, and counted.
        with tf.control_dependencies([opens]):
            numbered = variables.last_number.set_at([worker], tf.maximum(newest, number))
        with tf.control_dependencies([numbered]):
            after = tf.identity(updated)
        with tf.control_dependencies([self._wake(sender, worker, after, opens)]):
            self._updated = tf.identity(after)

    def _count(self, variables: ShardVariables, sender: TokenSender, worker: tf.Tensor, is_new: tf.Tensor) -> tf.Tensor:
        """Counts a gradient that is applied or dropped.

        Args:
            is_new: bool scalar; False: the gradient's number is not above the newest.

        Returns:
            Whether this ends the waits of other workers, bool scalar.
        """
        del variables, sender, worker, is_new
        return tf.constant(False)

    def _wake(self, sender: TokenSender, worker: tf.Tensor, after: tf.Tensor, opens: tf.Tensor) -> tf.Operation:
        """Ends the wait of the gradient's worker, and if it `opens` them those of others.

        Args:
            after: int64 scalar, the global step after the gradient.
        """
        del opens
        return sender.answer(worker, after)

    def start(self, session: OwnSession) -> None:
        """See `Updates`."""
        session.run(self._ready)
        self._advance = session.make_callable(self._updated)

    def advance(self, hold: bool) -> int:
        """Waits for a gradient and applies or drops it; `hold` has no effect. See `Updates`."""
        del hold
        return int(self._advance())

    def release_barrier(self) -> None:
        """Does nothing: no worker waits for the updates of others."""

    def set_present(self, workers: Collection[int]) -> None:
        """Does nothing: no worker waits for another. See `Updates`."""
