"""A worker of a driver without a process: a test says what happens to it."""

from __future__ import annotations

import signal
from typing import Any

from psfleet import errors


class ScriptedWorker:
    """See `psfleet.driver.worker.Worker`.

    Attributes:
        sign: See `newest_sign`.
        is_absent: Whether no process is there.
        causes: Of all starts.
        is_killed, is_closed: Whether the present process was killed, and whether `close` was called.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.sign = 0
        self.is_absent = self.is_killed = self.is_closed = False
        self.causes: list[str] = []
        self._code: int | None = None
        self._failure = ""

    def end(self, code: int, failure: str = "") -> None:
        """Ends the process; with a failure that it reports, or without a word."""
        self._code, self._failure = code, failure

    def start(self, cause: str = "") -> None:
        """See `Worker`."""
        self.causes.append(cause)
        self._code, self._failure, self.is_killed = None, "", False

    def is_there(self) -> bool:
        """See `Worker`."""
        return not self.is_absent

    def exit_code(self) -> int | None:
        """See `Worker`."""
        return self._code

    def failure(self) -> dict[str, Any] | None:
        """See `Worker`."""
        return {"message": self._failure, "exit_code": self._code, "details": ""} if self._failure else None

    def cause_of_end(self) -> str:
        """See `Worker`."""
        assert self._code is not None, "it has ended"
        return f"{self._failure} (exit code {self._code})" if self._failure else errors.cause_of_end(self._code)

    def newest_sign(self) -> object:
        """See `Worker`."""
        return self.sign

    def kill(self) -> None:
        """See `Worker`."""
        self.is_killed = True
        self._code = errors.SIGNAL_BASE + signal.SIGKILL

    def close(self) -> None:
        """See `Worker`."""
        self.is_closed = True
