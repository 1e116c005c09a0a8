"""In place of `os._exit`: the end of a process whose code never returns, as a test observes it."""

from __future__ import annotations

import threading

from psfleet.errors import ProgramError

WAIT_SECS = 20.0


class ProcessEnd:
    """Records the exit codes, and holds code until the process would have ended; called as `os._exit`.

    A timer cannot interrupt the code that it gives up, which a test must end; a process of psfleet has ended by then.
    """

    def __init__(self) -> None:
        self.codes: list[int] = []
        self._ended = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self._ended.set()

    def wait(self, what: str) -> None:
        """Waits as `what` of the user's code, which never returns."""
        assert self._ended.wait(WAIT_SECS), f"nothing ends a process that waits for {what}"

    def hang(self, *_: object) -> None:
        """In place of a function that loads or makes something of the program: blocks, then raises `ProgramError`."""
        self.wait("a program")
        raise ProgramError("released")
