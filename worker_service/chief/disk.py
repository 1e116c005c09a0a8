"""What the chief waits for on the disk of its run folder, so that a disk that does not answer can be noticed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psfleet.checkpoint.store_client import bytes_moved


@dataclass
class _Access:
    """A read or a write of one thread, which can have any number of system calls.

    Attributes:
        what: For the message.
        since: When it began, or when its thread was last seen to have moved bytes.
        thread: The kernel's id of the thread.
        num_bytes: That the thread had read and written at the last look; None before the first, or not known.
    """

    what: str
    since: float
    thread: int
    num_bytes: int | None = None


COUNTS = ("rchar", "wchar", "read_bytes")
"""What the kernel counts for a thread, in `proc(5)`: bytes of its calls, and those that it read through memory, as
safetensors does, from the disk itself."""


class Disk:
    """The reads and writes that are in progress, of all threads.

    A network file system whose server is gone neither does nor refuses them, and nothing interrupts the thread that
    waits: `end_if_stuck` ends the process. A checkpoint that takes long, because it is large, is no such case: its
    thread moves bytes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accesses: dict[int, _Access] = {}

    @contextmanager
    def reading(self, path: object) -> Iterator[None]:
        """Context manager for a read of a file or folder, on a disk or in a store."""
        with self._access(f"a read of {path}"):
            yield

    @contextmanager
    def writing(self, what: object) -> Iterator[None]:
        """Context manager for a write."""
        with self._access(f"a write of {what}"):
            yield

    @contextmanager
    def _access(self, what: str) -> Iterator[None]:
        access = _Access(what, self._clock(), threading.get_native_id())
        self._accesses[id(access)] = access
        try:
            yield
        finally:
            del self._accesses[id(access)]

    def stuck(self, secs: float) -> str:
        """What the disk has neither done nor refused for a time, as a message; empty if there is nothing."""
        for access in [*self._accesses.values()]:
            num_bytes = _bytes_moved(access.thread)
            if None not in (access.num_bytes, num_bytes) and num_bytes != access.num_bytes:
                access.since = self._clock()
            access.num_bytes = num_bytes
            if self._clock() - access.since >= secs:
                where = "store" if "://" in access.what else "disk"
                return f"the {where} has not answered for {secs:g} s to {access.what}"
        return ""


def _bytes_moved(thread: int) -> int | None:
    """What another thread of this process has read and written in its life; None where the kernel does not count it."""
    if thread == threading.get_native_id():
        # This call reads, too.
        return None
    try:
        lines = Path(f"/proc/self/task/{thread}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    counts = [int(line.partition(":")[2]) for line in lines if line.startswith(COUNTS)]
    # The connections to a store belong to another thread.
    return sum(counts, bytes_moved(thread))
