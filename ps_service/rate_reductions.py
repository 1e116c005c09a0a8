"""The steps from which on a plateau schedule reduces the learning rate of a shard, and the pause that makes them exact.

All ps must reduce the rate from the same step on, but a request can come too late for one of them. So the chief first
has every ps pause at a step ahead. Once all have accepted it, none passes it before the chief has sent it as that of a
reduction.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from psfleet.control import MIN_STEPS_AHEAD


class RateReductions:
    """The reductions of one shard; its methods may be called from any thread.

    Args of the constructor:
        steps: From which on the rate is reduced, each once more.
    """

    def __init__(self, steps: Sequence[int] = ()) -> None:
        self._steps = tuple(steps)
        self._pause_at: int | None = None
        self._newest = (-1, 0)
        self._is_closed = False
        self._changed = threading.Condition()

    def schedule(self, steps: Sequence[int], pause_at: int | None, order: tuple[int, int], present: int) -> bool:
        """Replaces the steps and the pause.

        Args:
            pause_at: No update may follow this step until the next call; None: updates continue.
            order: Of the request: the chief's incarnation, and the number of its request. One whose deadline has passed
                can arrive after the request that ended its pause.
            present: The shard's step, which does not change during this call.

        Returns:
            False if nothing changes: an update after the pause can have started, or a newer request came before.
        """
        with self._changed:
            is_late = pause_at is not None and pause_at < present + MIN_STEPS_AHEAD
            if is_late or order <= self._newest:
                return False
            self._steps, self._pause_at, self._newest = tuple(steps), pause_at, order
            self._changed.notify_all()
            return True

    def await_number(self, step: int) -> int:
        """Waits while the shard must pause at a step, or until `close`; the number of reductions up to that step."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._pause_at != step)
            return sum(each <= step for each in self._steps)

    def pauses_at(self, step: int) -> bool:
        """Whether no update may follow a step at present."""
        with self._changed:
            return self._pause_at == step

    def close(self) -> None:
        """Ends a pause for good."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
