"""Writes of the chief on a disk that may be full or gone: a failure is an event, and training continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from psfleet.errors import DeadlineError, StorageError
from psfleet.polling import wait_until
from worker_service.chief.events import Events

logger = logging.getLogger("psfleet.chief")

RETRY_SECS = 1.0
"""Between two attempts to write what the run cannot end without."""


class Storage:
    """Decides what a failed write means; its methods may be called from any thread.

    An event is recorded when a kind of file cannot be written for the first time, and again if the cause changes or
    after a success: a disk that is full for hours does not fill the report. That writing works again is logged.

    Args of the constructor:
        events: Receives the failures.
        stall_secs: How long `insist` tries.

    Attributes:
        disk: Knows what is in progress.
    """

    def __init__(self, events: Events, stall_secs: float) -> None:
        self.events = events
        self.disk = events.disk
        self._stall_secs = stall_secs
        self._lock = threading.Lock()
        self._causes: dict[tuple[str, str, int], str] = {}

    @contextmanager
    def writing(self, what: str, kind: str = "write_failed", is_awaited: bool = True) -> Iterator[None]:
        """Context manager for writes that training can do without: a failure of them is recorded and passes.

        Args:
            what: Is written; for the message.
            kind: Of the event.
            is_awaited: Whether the run waits for the end of the write: see `Disk`.
        """
        try:
            with self.disk.writing(what) if is_awaited else nullcontext():
                yield
        except (OSError, tf.errors.OpError) as error:
            self.failed(what, f"{what}: {cause_of(error)}", kind)
        else:
            self.written(what)

    def insist(self, what: str, write: Callable[[], object]) -> None:
        """Calls a function until it succeeds.

        Raises:
            StorageError: It has failed for `stall_secs`.
        """

        def is_written() -> bool:
            with self.writing(what):
                write()
                return True
            return False

        try:
            wait_until(is_written, self._stall_secs, what, poll_secs=RETRY_SECS)
        except DeadlineError as error:
            cause = self.cause(what)
            raise StorageError(f"cannot be written for {self._stall_secs:g} s: {cause}") from error

    def failed(self, what: str, cause: str, kind: str, role: str = "chief", index: int = 0) -> None:
        """Records that a process cannot write something."""
        key = (what, role, index)
        with self._lock:
            is_known = self._causes.get(key) == cause
            self._causes[key] = cause
        if not is_known:
            self.events.add(role, index, kind, cause)

    def written(self, what: str, role: str = "chief", index: int = 0) -> None:
        """Records that a process could write something."""
        with self._lock:
            cause = self._causes.pop((what, role, index), "")
        if cause:
            logger.info("%s %d can write again; it was: %s", role, index, cause, extra={"event": "write_resumed"})

    def cause(self, what: str) -> str:
        """Why something cannot be written at present; empty if it can."""
        with self._lock:
            return next((cause for (each, _, _), cause in self._causes.items() if each == what), "")


def cause_of(error: OSError | tf.errors.OpError) -> str:
    """The cause of a failed write in one line, without the operation that TensorFlow names."""
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return str(error.message.partition("\n")[0].rpartition("}} ")[2].partition(" [Op:")[0])
