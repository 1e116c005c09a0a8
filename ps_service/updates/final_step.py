"""The global step at which training ends: set while workers train, by a signal or by early stopping."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import DeadlineError
from psfleet.polling import wait_until
from psfleet.tf import ShardVariables

UPDATE_SECS = 4.0
"""How long a request waits for the end of an update: less than the deadline of the chief's call."""


class FinalStep:
    """Sets the final step of one shard.

    Workers read it together with the global step. In sync mode all must read the same: if some end training at a step,
    the others would wait for their next gradients. A stop is therefore only requested (`stop_step`), and the next
    update makes it the final step before it changes the global step: see `began_step`. So the step in progress can be
    the last one, unless its update has begun. In async mode the ps drops the gradients of a worker that does not know
    the final step yet.
    """

    def __init__(self, variables: ShardVariables, has_quorum: bool) -> None:
        self._has_quorum = has_quorum
        self._step = v1.placeholder(tf.int64, [])
        variable = variables.stop_step if has_quorum else variables.final_step
        self._request = variable.assign(self._step, read_value=False)
        self._raise = variables.final_step.assign(self._step, read_value=False)
        self._progress = tf.stack([*variables.progress(), variables.started_step.read_value()])

    def set(self, session: v1.Session, step: int) -> bool:
        """Makes a step above the global step the final one; from any thread.

        Returns:
            Whether it is; False: the update to it had begun before.
        """
        session.run(self._request, {self._step: np.int64(step)})
        if not self._has_quorum:
            return True

        def is_final() -> bool | None:
            """None while an update is in progress that may have begun before the request."""
            global_step, final_step, started_step = session.run(self._progress).tolist()
            if started_step < step or final_step == step:
                return True
            return False if global_step >= step else None

        try:
            answer = wait_until(
                is_final, UPDATE_SECS, "an update", done=lambda found: found is not None, poll_secs=0.001
            )
        except DeadlineError:
            return False
        return bool(answer)

    def raise_to(self, session: v1.Session, step: int) -> bool:
        """Makes a step above the present final one the final one; from any thread.

        An update that has begun may write the earlier one once more: it is awaited.

        Returns:
            Whether it is; False: the update in progress did not end in time.
        """
        session.run(self._request, {self._step: np.int64(step)})

        def is_final() -> bool:
            session.run(self._raise, {self._step: np.int64(step)})
            global_step, final_step, started_step = session.run(self._progress).tolist()
            return bool(final_step == step and (not self._has_quorum or started_step == global_step))

        try:
            return wait_until(is_final, UPDATE_SECS, "an update", poll_secs=0.001)
        except DeadlineError:
            return False


def last_step(final_step: int, hold_at: int | None) -> int:
    """The step at which workers leave: the final one, or that at which the run is held before."""
    return final_step if hold_at is None else min(final_step, hold_at)


def began_step(variables: ShardVariables, step: tf.Tensor) -> tf.Operation:
    """Marks an update as begun, and then makes a requested stop the final step if it is still ahead.

    Args:
        step: int64 scalar, the global step after the update.
    """
    started = variables.started_step.assign(step, read_value=False)
    with tf.control_dependencies([started]):
        stop_step, final_step = variables.stop_step.read_value(), variables.final_step.read_value()
    return variables.final_step.assign(tf.where(stop_step >= step, stop_step, final_step), read_value=False)
