"""Which process each worker of a driver is: of two with one index, the one that has joined later."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from psfleet.errors import PERMANENT_CODES, ReplacedError


def is_process(text: str) -> bool:
    """Whether a text identifies a process: 16 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{16}", text) is not None


@dataclass(frozen=True)
class Failure:
    """Why a process ends, as it says itself; without a message it has ended without having said so."""

    exit_code: int
    message: str
    details: str

    @property
    def is_final(self) -> bool:
        """Whether no other process follows."""
        return self.exit_code in PERMANENT_CODES and self.message != ""


@dataclass(frozen=True)
class Joined:
    """The process that a worker is.

    Attributes:
        process: Its identifier.
        signs: Number of its signs of life.
    """

    process: str
    signs: int = 0


class WorkerRegistry:
    """The processes of all workers; thread-safe.

    Args of the constructor:
        workers: Number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._lock = threading.Lock()
        self._joined: list[Joined | None] = [None] * workers
        self._refused: set[str] = set()
        self._failures: dict[str, Failure] = {}
        self._released: set[str] = set()

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._joined)

    def beat(self, index: int, process: str) -> None:
        """Counts a sign of life; by its first one a process replaces the one that had its index.

        Raises:
            ReplacedError: It was replaced or removed.
            IndexError: No worker has this index.
        """
        with self._lock:
            self._check(index)
            if process in self._refused:
                raise _replaced(index)
            joined = self._joined[index]
            if joined is not None and joined.process != process:
                self._refused.add(joined.process)
                joined = None
            self._joined[index] = Joined(process, joined.signs + 1 if joined else 1)

    def require(self, index: int, process: str) -> None:
        """Checks that a process is the worker of this index, or makes it that if there is none.

        A driver that was started again may get another call of a process before its sign of life.

        Raises:
            ReplacedError: It was replaced or removed.
            IndexError: No worker has this index.
        """
        with self._lock:
            self._require(index, process)

    def fail(self, index: int, process: str, failure: Failure) -> None:
        """Notes why a process ends, unless it has said so before; raises as `require`."""
        with self._lock:
            self._require(index, process)
            self._failures.setdefault(process, failure)

    def joined(self, index: int) -> Joined | None:
        """The process that a worker is; None: none has joined, or it was removed."""
        with self._lock:
            return self._joined[index]

    def failure(self, process: str) -> Failure | None:
        """Why a process has ended; None: it has not said that it does."""
        with self._lock:
            return self._failures.get(process)

    def remove(self, index: int, process: str) -> None:
        """Refuses a process from now on."""
        with self._lock:
            self._refused.add(process)
            joined = self._joined[index]
            if joined is not None and joined.process == process:
                self._joined[index] = None

    def release(self, process: str) -> None:
        """Notes that a process knows that nothing is left to do."""
        with self._lock:
            self._released.add(process)

    def are_there(self) -> bool:
        """Whether no other process of any worker is expected to join."""
        with self._lock:
            awaited = {None, *self._failures} - self._ended()
            return awaited.isdisjoint(None if each is None else each.process for each in self._joined)

    def are_released(self) -> bool:
        """Whether all workers are there and know that nothing is left to do, or are not started again.

        After a restart of the driver, those that have not joined yet wait for it, too.
        """
        with self._lock:
            processes = {None if each is None else each.process for each in self._joined}
            return processes <= self._released | self._ended()

    def _ended(self) -> set[str]:
        return {process for process, failure in self._failures.items() if failure.is_final}

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise IndexError(f"worker {index}: expected an index from 0 to {self.size - 1}")

    def _require(self, index: int, process: str) -> None:
        self._check(index)
        joined = self._joined[index]
        if process in self._refused or (joined is not None and joined.process != process):
            raise _replaced(index)
        if joined is None:
            self._joined[index] = Joined(process)


def _replaced(index: int) -> ReplacedError:
    return ReplacedError(f"worker {index} was replaced by another process")
