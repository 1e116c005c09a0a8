"""Signs of life for the driver of a study or of predictions, and the deadline of what this worker does.

A thread renews the time of a file each second. The driver kills a worker that does not: it is frozen. What the main
thread does has a deadline, too; when it expires, the process ends, because nothing interrupts code that waits.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

from psfleet.errors import DeadlineError

logger = logging.getLogger("psfleet.worker")

BEAT_SECS = 1.0
"""Interval of the signs; deadlines are counted in it."""


class SignsOfLife:
    """The thread and its file; `begin` is called by the main thread.

    Args of the constructor:
        path: The file.
        end_process: Called with the exit code when a deadline has expired.
    """

    def __init__(self, path: Path, end_process: Callable[[int], object] = os._exit) -> None:
        self._path = path
        self._end_process = end_process
        self._waits_for: tuple[str, float] = ("", math.inf)
        self._began = 0
        self._beats = 0

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._beat_forever, name="signs-of-life", daemon=True).start()

    def begin(self, what: str, secs: float = math.inf) -> None:
        """What this worker does until the next call; inf: that has a deadline of its own, or needs none."""
        self._waits_for, self._began = (what, secs), self._beats

    def beat(self) -> None:
        """Renews the file; ends the process if it has waited too long."""
        (what, secs), waited_secs = self._waits_for, (self._beats - self._began) * BEAT_SECS
        if waited_secs > secs:
            error = DeadlineError(what, secs)
            logger.error("%s", error, extra={"event": "failed", "exit_code": error.exit_code})
            faulthandler.dump_traceback()
            self._end_process(error.exit_code)
            return
        self._beats += 1
        try:
            self._path.touch()
        except OSError as error:
            logger.warning("no sign of life for the driver: %s", error)

    def _beat_forever(self) -> None:
        pause = threading.Event()
        while True:
            self.beat()
            pause.wait(BEAT_SECS)
