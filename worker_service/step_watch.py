"""Ends a worker whose step does not return: nothing interrupts an operation that waits.

A call of a session returns once all its operations have: also after its deadline, or once the session is closed.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from types import TracebackType
from typing import Self

from psfleet.errors import DeadlineError
from psfleet.service.process import log_end

logger = logging.getLogger("psfleet.worker")

LOOK_SECS = 1.0
"""Interval in which a thread looks; it counts its looks, so that a process that was frozen has not waited."""


class StepWatch:
    """Context manager for a call of a step; one at a time.

    Args of the constructor:
        limit_secs: Of a call, after which the process ends with 75, once `start` was called.
        is_over: Ends the thread, unless a step runs: it can still fail to return.
    """

    def __init__(self, limit_secs: float, is_over: threading.Event) -> None:
        self._limit_secs, self._is_over = limit_secs, is_over
        self._number, self._is_running = 0, False

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._watch, name="step-watch", daemon=True).start()

    def __enter__(self) -> Self:
        self._number += 1
        self._is_running = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_running = False

    def _watch(self) -> None:
        looks, seen = 0, 0
        never = threading.Event()
        while self._is_running or not self._is_over.is_set():
            (never if self._is_running else self._is_over).wait(LOOK_SECS)
            looks = looks + 1 if self._is_running and self._number == seen else 0
            seen = self._number
            if looks * LOOK_SECS > self._limit_secs:
                error = DeadlineError("the operations of a step to return", self._limit_secs)
                extra = {"event": "failed", "exit_code": error.exit_code}
                log_end(functools.partial(logger.error, "%s", error, extra=extra))
                os._exit(error.exit_code)
                return
