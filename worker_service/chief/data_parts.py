"""The passes of a loader over its part of the data set, as workers have reported them, with dynamic sharding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from psfleet.control import control_pb2 as pb


@dataclass
class Pass:
    """One pass of a loader, as each worker process has reported it."""

    by_reader: dict[str, pb.Pass] = field(default_factory=dict)

    @property
    def delivered(self) -> int:
        """Examples that training was given."""
        return sum(each.examples for each in self.by_reader.values())

    @property
    def size(self) -> int:
        """Examples of the part; negative: unknown."""
        return max(each.size for each in self.by_reader.values())

    @property
    def is_lost(self) -> bool:
        """Whether the loader's process was lost in it."""
        return any(each.lost for each in self.by_reader.values())

    @property
    def is_whole(self) -> bool:
        """Whether each reader has come to its end: what they were given is all that there is."""
        return all(each.ended and not each.lost for each in self.by_reader.values())


@dataclass
class Part:
    """The passes of one loader.

    Attributes:
        processes: Those of each of its processes by number, in the order in which these were seen.
        first: By process, the epoch of its pass 0; absent: no worker has taken an example of it.
        jumps: By process, and by number of a pass, how many epochs the process had been silent until then, as one that
            was frozen.
        bases: By process and worker process, what that one adds to the number of a pass for the number of its epoch.
        highest: By process, the highest number of a pass.
        dropped: By process, the highest number of a pass that is kept no longer.
        newest: By process and worker process, the newest pass that it has begun.
        present: The present process.
    """

    processes: dict[str, dict[int, Pass]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    jumps: dict[str, dict[int, int]] = field(default_factory=dict)
    bases: dict[tuple[str, str], int] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    present: str = ""
    _size: int = -1

    def epochs(self) -> Iterator[tuple[int, str, int, Pass]]:
        """Number of the epoch, process, number of the pass, pass: an epoch has one pass at most."""
        end = 0
        for process, passes in self.processes.items():
            first = max(end, self.first.get(process, end))
            for number in sorted(passes):
                yield first + number + self._silent(process, number), process, number, passes[number]
            end = first + self.highest[process] + self._silent(process, self.highest[process]) + 1

    def end(self) -> int:
        """The epoch after the newest one."""
        return max((epoch for epoch, *_ in self.epochs()), default=-1) + 1

    def place(self, reader: str, taken: pb.Pass, first: int) -> None:
        """A worker has taken examples of a pass in one of its epochs.

        Args:
            first: The epoch of pass 0 of the process if that is new.
        """
        process = taken.process
        self.first.setdefault(process, first)
        silent = self._silent(process, taken.number)
        base = self.bases.setdefault((process, reader), taken.epoch - taken.number - silent)
        jump = taken.epoch - taken.number - base
        if jump > silent:
            self.jumps.setdefault(process, {})[taken.number] = jump

    def epoch(self, process: str, number: int) -> int:
        """That of a pass of a process that a worker has taken examples of."""
        return self.first[process] + number + self._silent(process, number)

    def _silent(self, process: str, number: int) -> int:
        """How many epochs a process had been silent until a pass."""
        return max((jump for at, jump in self.jumps.get(process, {}).items() if at <= number), default=0)

    def size(self) -> int | None:
        """Examples of the part: its cardinality, or the most of a pass without a loss; None: unknown.

        A pass of which a worker has not reported its share yet looks as if it had fewer.
        """
        found = [each for *_, each in self.epochs()]
        known = max((each.size for each in found), default=-1)
        whole = [each.delivered for each in found if each.is_whole] if known < 0 else []
        self._size = max(self._size, known, *whole)
        return self._size if self._size >= 0 else None

    def drop(self, process: str, number: int) -> None:
        """Keeps a pass no longer."""
        del self.processes[process][number]
        self.dropped[process] = max(self.dropped.get(process, -1), number)
