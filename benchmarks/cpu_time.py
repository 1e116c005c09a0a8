"""CPU time of processes and all their descendants, sampled while they run."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.sampling import sampling

PROC = Path("/proc")
SAMPLE_SECS = 0.1
SEARCH_SECS = 1.0
"""Between two searches for new descendants, which read the state of every process of the machine."""
NAME, PARENT, USER, SYSTEM, STARTED = 0, 2, 12, 13, 20
"""Places in what `_fields` returns."""


@contextmanager
def cpu_time(roots: Callable[[], Iterable[int]], program: str | None = None) -> Iterator[CpuTime]:
    """Samples the CPU time of some processes and of all below them during the block.

    Args:
        roots: Returns the ids of the processes.
        program: Only processes of this name count; None: all.
    """
    cpu = CpuTime(roots, program)
    with sampling(cpu.update, SAMPLE_SECS):
        yield cpu


class CpuTime:
    """Samples of the CPU time of some processes and of all below them.

    Args of the constructor:
        roots: Returns the ids of the processes.
        program: Only processes of this name count; None: all.
        proc: Where the kernel shows processes.
    """

    def __init__(self, roots: Callable[[], Iterable[int]], program: str | None = None, proc: Path = PROC) -> None:
        self._roots = roots
        self._program = program
        self._proc = proc
        self._ticks: dict[tuple[int, int], int] = {}
        self._pids: set[int] = set()
        self._samples: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        self._searched = float("-inf")

    def secs(self, began: float, ended: float) -> float:
        """CPU seconds that the processes used between two Unix times; those that still run are sampled once more."""
        self.sample(time.time())
        return at(self._samples, ended) - at(self._samples, began)

    def update(self) -> None:
        """Adds a sample of now, and looks for the descendants if the last search was `SEARCH_SECS` ago."""
        if time.monotonic() - self._searched >= SEARCH_SECS:
            self.search()
            self._searched = time.monotonic()
        self.sample(time.time())

    def search(self) -> None:
        """Looks for the descendants."""
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if name.isdecimal() and (fields := self._fields(int(name))):
                children.setdefault(int(fields[PARENT]), []).append(int(name))
        found: set[int] = set()
        waiting = list(self._roots())
        while waiting:
            pid = waiting.pop()
            found.add(pid)
            waiting += children.get(pid, [])
        with self._lock:
            self._pids |= found

    def sample(self, now: float) -> None:
        """Adds one sample; a process that has ended counts with its last one."""
        with self._lock:
            for pid in tuple(self._pids):
                fields = self._fields(pid)
                if not fields:
                    self._pids.remove(pid)
                    continue
                if self._program not in (None, fields[NAME]):
                    continue
                # Ids are used again: a process is the same if it started at the same time.
                self._ticks[pid, int(fields[STARTED])] = int(fields[USER]) + int(fields[SYSTEM])
            self._samples.append((now, sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")))

    def _fields(self, pid: int) -> list[str]:
        """Fields of /proc/PID/stat from the name on (proc_pid_stat(5)); empty if the process has ended."""
        with suppress(OSError):
            before, _, after = (self._proc / str(pid) / "stat").read_text().rpartition(")")
            return [before.partition("(")[2], *after.split()]
        return []


def at(samples: Sequence[tuple[float, float]], moment: float) -> float:
    """The value at a time, between two samples by linear interpolation.

    Raises:
        ValueError: The time is outside the samples.
    """
    if not samples or not samples[0][0] <= moment <= samples[-1][0]:
        raise ValueError(f"no sample of CPU time before and after {moment:.3f}")
    after = bisect_left(samples, moment, key=lambda sample: sample[0])
    last, value = samples[after]
    if last == moment:
        return value
    first, before = samples[after - 1]
    return before + (value - before) * (moment - first) / (last - first)
