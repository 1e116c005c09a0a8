"""Signs of life for what started this process, and the deadline of what it does.

A thread gives a sign each second. A process that gives none is frozen, and is killed or replaced. What the main thread
does has a deadline, too; when it expires, the process ends, because nothing interrupts code that waits.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

from psfleet.errors import DeadlineError, PsfleetError
from psfleet.job.service_access import life_file
from psfleet.service.process import log_end

logger = logging.getLogger("psfleet.worker")

BEAT_SECS = 1.0
"""Interval of the signs; deadlines are counted in it."""


class SignsOfLife:
    """The thread; `begin` is called by the main thread.

    Args of the constructor:
        give: Gives a sign; returns the exit code with which this process ends, or None.
        end_process: Called with the exit code, or with that of a deadline that has expired.
        fail: Called with the error before the process ends because of a deadline.
    """

    def __init__(
        self,
        give: Callable[[], int | None],
        end_process: Callable[[int], object] = os._exit,
        fail: Callable[[PsfleetError], object] = lambda error: None,
    ) -> None:
        self._give = give
        self._end_process = end_process
        self._fail = fail
        self._waits_for: tuple[str, float] = ("", math.inf)
        self._began = 0
        self._beats = 0
        self._is_unheard = False

    @classmethod
    def in_file(cls, path: Path, end_process: Callable[[int], object] = os._exit) -> SignsOfLife:
        """Signs of life that renew the time of a file."""
        return cls(path.touch, end_process)

    @classmethod
    def of_service(cls, folder: Path, role: str, index: int) -> SignsOfLife:
        """Those of a process of a service, in the folder of the service, which is made if it is missing."""
        file = life_file(folder, role, index)
        file.parent.mkdir(parents=True, exist_ok=True)
        return cls.in_file(file)

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._beat_forever, name="signs-of-life", daemon=True).start()

    def begin(self, what: str, secs: float = math.inf) -> None:
        """What this worker does until the next call; inf: that has a deadline of its own, or needs none."""
        self._waits_for, self._began = (what, secs), self._beats

    def beat(self) -> None:
        """Gives a sign; ends the process if it has waited too long."""
        (what, secs), waited_secs = self._waits_for, (self._beats - self._began) * BEAT_SECS
        if waited_secs > secs:
            error = DeadlineError(what, secs)
            log_end(lambda: logger.error("%s", error, extra={"event": "failed", "exit_code": error.exit_code}))
            self._fail(error)
            self._end_process(error.exit_code)
            return
        self._beats += 1
        try:
            code = self._give()
        except OSError as error:
            if not self._is_unheard:
                logger.warning("no sign of life can be given: %s", error)
            self._is_unheard = True
            return
        self._is_unheard = False
        if code is not None:
            self._end_process(code)

    def _beat_forever(self) -> None:
        pause = threading.Event()
        while True:
            self.beat()
            pause.wait(BEAT_SECS)
