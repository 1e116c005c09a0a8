"""Counts the examples that this worker has been given in each pass of a loader, with dynamic sharding."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from psfleet.control import control_pb2 as pb

REPORTED_PASSES = 64
"""Newest ended passes that each report repeats: a loader or a chief that was restarted does not know them."""
REPORTED_SECS = 10.0
"""How long each report repeats any ended pass: until the chief, which looks each second, has seen it."""


@dataclass(frozen=True)
class PassKey:
    """A pass of one process of a loader over its part of the data set; passes are counted from 0 in each process."""

    loader: int
    process: str
    number: int


class PassCounts:
    """The counts of one worker; from any thread.

    Args of the constructor:
        on_report: Called after a pass has ended, and by `report`.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self, on_report: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._passes: dict[PassKey, pb.Pass] = {}
        # When the ended passes have ended, the first one first.
        self._ended: dict[PassKey, float] = {}
        self._on_report = on_report
        self._clock = clock

    def begin(self, key: PassKey, size: int) -> None:
        """This worker reads a pass from now on; the earlier ones of the process give it nothing more, once counted.

        Args:
            key: The pass.
            size: Examples of the loader's part; negative: unknown.
        """
        with self._lock:
            made = pb.Pass(loader=key.loader, process=key.process, number=key.number, size=max(size, -1))
            found = self._passes.setdefault(key, made)
            found.ended = found.lost = False
            self._ended.pop(key, None)

    def place(self, key: PassKey, epoch: int) -> None:
        """This worker takes examples of a pass, which has begun, in one of its epochs."""
        with self._lock:
            self._passes[key].epoch = epoch

    def add(self, examples: Iterable[tuple[PassKey, int]]) -> None:
        """Training was given examples of passes that have begun: of each so many."""
        with self._lock:
            for key, number in examples:
                self._passes[key].examples += number

    def end(self, key: PassKey, is_lost: bool = False) -> None:
        """No further example of a pass comes to this worker.

        Args:
            key: The pass, which has begun.
            is_lost: Whether the loader's process was lost in it.
        """
        with self._lock:
            found = self._passes[key]
            if found.ended:
                return
            found.ended, found.lost = True, is_lost
            self._ended[key] = now = self._clock()
            surplus = len(self._ended) - REPORTED_PASSES
            for each, since in list(itertools.islice(self._ended.items(), max(0, surplus))):
                if now - since <= REPORTED_SECS:
                    break
                del self._passes[each], self._ended[each]
        self.report()

    def report(self) -> None:
        """Has the counts reported at once."""
        self._on_report()

    def open(self) -> list[PassKey]:
        """The passes that have begun and not ended, the oldest first."""
        with self._lock:
            return [key for key in self._passes if key not in self._ended]

    def newest(self) -> list[pb.Pass]:
        """Copies of what is reported."""
        with self._lock:
            copies = []
            for state in self._passes.values():
                copy = pb.Pass()
                copy.CopyFrom(state)
                copies.append(copy)
            return copies
