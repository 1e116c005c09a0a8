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

    def __init__(self, variables: ShardVariables, is_sync: bool) -> None:
        self._is_sync = is_sync
        self._step = v1.placeholder(tf.int64, [])
        variable = variables.stop_step if is_sync else variables.final_step
        self._request = variable.assign(self._step, read_value=False)
        self._progress = tf.stack([*variables.progress(), variables.started_step.read_value()])

    def set(self, session: v1.Session, step: int) -> bool:
        """Makes a step above the global step the final one; from any thread.

        Returns:
            Whether it is; False: the update to it had begun before.
        """
        session.run(self._request, {self._step: np.int64(step)})
        if not self._is_sync:
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


def began_step(variables: ShardVariables, global_step: tf.Tensor) -> tf.Operation:
    """Marks an update as begun, and then makes a requested stop the final step if it is still ahead.

    Args:
        global_step: int64 scalar, before the update.
    """
    started = variables.started_step.assign(global_step + 1, read_value=False)
    with tf.control_dependencies([started]):
        stop_step, final_step = variables.stop_step.read_value(), variables.final_step.read_value()
    return variables.final_step.assign(tf.where(stop_step > global_step, stop_step, final_step), read_value=False)
