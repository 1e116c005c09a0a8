"""Async mode: each gradient is one update, unless the policy for stale gradients drops it."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.interface import next_push, timed
from ps_service.updates.state import StateUpdate
from ps_service.updates.tokens import TokenSender
from psfleet.job.sections import Stale
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

    Args of the constructor:
        make_optimizer: Builds the optimizer at a factor (float32 scalar) of the scheduled learning rate.
        state_share: Returns, at a global step (int64 scalar), the share of `StateUpdate.moved`.
    """

    def __init__(
        self,
        variables: ShardVariables,
        make_optimizer: Callable[[tf.Tensor], v1.train.Optimizer],
        stale: Stale,
        state_share: Callable[[tf.Tensor], tf.Tensor],
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
        self.optimizer: v1.train.Optimizer = make_optimizer(policy.rate_factor)
        entry = tf.cast(tf.minimum(staleness, STALENESS_BUCKETS - 1), tf.int32)
        counted = [
            variables.last_local_step.set_at([worker], local_step),
            variables.last_number.set_at([worker], tf.maximum(newest, number)),
            variables.used.add_at([worker], tf.cast(is_used, tf.int64)),
            variables.staleness.add_at([worker, entry], tf.constant(1, tf.int64)),
        ]

        def apply() -> tf.Tensor:
            pairs = [
                (gradient * policy.gradient_factor, variable)
                for gradient, variable in zip(push.gradients, variables.buckets, strict=True)
            ]
            new_state = StateUpdate(variables).moved(push.state, worker, state_share(global_step))
            written = [variables.state.assign(state, read_value=False) for state in new_state]
            with v1.container(variables.container), tf.control_dependencies(written):
                update = timed(
                    variables, push.gradients, lambda: self.optimizer.apply_gradients(pairs, variables.global_step)
                )
            with tf.control_dependencies([update]):
                return variables.global_step.read_value()

        with tf.control_dependencies(counted):
            after = tf.cond(is_used, apply, lambda: tf.identity(global_step))
        sender = TokenSender(variables, max_tokens=1)
        self._ready = sender.initializer
        with tf.control_dependencies([sender.send(worker, after)]):
            self._updated = tf.identity(after)

    def start(self, session: OwnSession) -> None:
        """See `Updates`."""
        session.run(self._ready)
        self._advance = session.make_callable(self._updated)

    def advance(self, hold: bool) -> int:
        """Waits for a gradient and applies or drops it; `hold` has no effect. See `Updates`."""
        del hold
        return int(self._advance())

    def release_barrier(self) -> None:
        """Does nothing: async mode has no barrier."""
