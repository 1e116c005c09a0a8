"""What the chief waits for on the disk of its run folder, so that a disk that does not answer can be noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """The reads and writes that are in progress, of all threads.

    A network file system whose server is gone neither does nor refuses them, and nothing interrupts the thread that
    waits: `end_if_stuck` ends the process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[object, tuple[str, float]] = {}

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Context manager for a read of a file or folder."""
        with self._access(f"a read of {path}"):
            yield

    @contextmanager
    def writing(self, what: object) -> Iterator[None]:
        """Context manager for a write."""
        with self._access(f"a write of {what}"):
            yield

    @contextmanager
    def _access(self, what: str) -> Iterator[None]:
        access = object()
        self._began[access] = what, self._clock()
        try:
            yield
        finally:
            del self._began[access]

    def stuck(self, secs: float) -> str:
        """What the disk has neither done nor refused for a time, as a message; empty if there is nothing."""
        for what, began in [*self._began.values()]:
            if self._clock() - began >= secs:
                return f"the disk has not answered for {secs:g} s to {what}"
        return ""
