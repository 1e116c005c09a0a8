"""How long a worker of a study or of a prediction has been silent: it renews the time of a file each second."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from psfleet.job.sections import Deadlines

MAX_LOOK_SECS = 1.0
"""So much a look adds at most: a driver that was frozen together with its workers finds none of them silent."""

MIN_SECS = 3.0
"""Shorter deadlines are as long: a worker gives a sign each second."""


class Silence:
    """Of one worker; used by the driver's thread.

    Args of the constructor:
        path: The file that the worker renews.
        deadlines: Of the job: `start_secs` for the first sign of a process, `step_secs` for each that follows.
    """

    def __init__(self, path: Path, deadlines: Deadlines, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._deadlines = deadlines
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """A process is about to start."""
        self._path.touch()
        self.limit_secs = self._deadlines.start_secs
        self._sign = self._newest()
        self._secs = 0.0
        self._looked = self._clock()

    def is_too_long(self) -> bool:
        """Whether the worker has been silent for `limit_secs`; called again and again."""
        now, sign = self._clock(), self._newest()
        self._secs += min(now - self._looked, MAX_LOOK_SECS)
        self._looked = now
        if sign != self._sign:
            self._sign, self._secs = sign, 0.0
            self.limit_secs = max(self._deadlines.step_secs, MIN_SECS)
        return self._secs >= self.limit_secs

    def _newest(self) -> int | None:
        """The time of the newest sign; None: the file is gone."""
        with suppress(FileNotFoundError):
            return self._path.stat().st_mtime_ns
        return None
