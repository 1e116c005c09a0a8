"""Which steps of a worker may be abandoned; see `worker_service.abandonment`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

MAX_IN_A_BURST = 100
SECS_EACH = 10.0
"""TensorFlow never frees about 4 kB of each call that fails: 30 MB in a day."""
MIN_STEP_SECS = 0.02
NUM_STEPS = 3
"""Last steps that have to take so long; the first one of a session always does."""


class Allowance:
    """Which steps of a worker may be abandoned.

    Not one after another that was, and on average one in `SECS_EACH`. A pause saves up to `MAX_IN_A_BURST`. None while
    steps are short: one that may be abandoned takes 0.5 ms longer.

    Args of the constructor:
        clock: In seconds, never set back.
        min_secs: Of each of the last steps that were not abandoned.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, min_secs: float = MIN_STEP_SECS) -> None:
        self._clock = clock
        self._min_secs = min_secs
        self._left = float(MAX_IN_A_BURST)
        self._began = clock()
        self._secs = deque([0.0] * NUM_STEPS, maxlen=NUM_STEPS)
        self._was_abandoned = False

    def begin(self) -> bool:
        """A step begins; whether it may be abandoned."""
        now = self._clock()
        self._left = min(MAX_IN_A_BURST, self._left + (now - self._began) / SECS_EACH)
        self._began = now
        return self._left >= 1 and not self._was_abandoned and min(self._secs) >= self._min_secs

    def end(self, was_abandoned: bool) -> None:
        """The step has ended."""
        self._was_abandoned = was_abandoned
        self._left -= was_abandoned
        if not was_abandoned:
            self._secs.append(self._clock() - self._began)
