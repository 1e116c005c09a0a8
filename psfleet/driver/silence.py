"""How long a worker has been silent, which gives a sign of life each second."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from psfleet.job.sections import Deadlines
from psfleet.polling import WatchedTime

MIN_SECS = 3.0
"""Shorter deadlines are as long: a worker gives a sign each second."""


class Silence:
    """Of one worker; used by the driver's thread. A driver that was frozen with its workers finds none of them silent.

    Args of the constructor:
        newest: Returns a value that changes with each sign.
        deadlines: Of the job: `start_secs` for the first sign of a process, `step_secs` for each that follows.
    """

    def __init__(
        self, newest: Callable[[], object], deadlines: Deadlines, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._newest = newest
        self._deadlines = deadlines
        self._watched = WatchedTime(clock)
        self.restart()

    def restart(self) -> None:
        """A process is about to start."""
        self.limit_secs = self._deadlines.start_secs
        self._sign = self._newest()
        self._watched.restart()

    def is_too_long(self) -> bool:
        """Whether the worker has been silent for `limit_secs`; called again and again."""
        secs, sign = self._watched.look(), self._newest()
        if sign != self._sign:
            self._sign, secs = sign, 0.0
            self._watched.restart()
            self.limit_secs = max(self._deadlines.step_secs, MIN_SECS)
        return secs >= self.limit_secs


def file_time(path: Path) -> Callable[[], int | None]:
    """A function that returns when a file was last renewed, in nanoseconds; None: it is not there."""

    def newest() -> int | None:
        with suppress(FileNotFoundError):
            return path.stat().st_mtime_ns
        return None

    return newest
