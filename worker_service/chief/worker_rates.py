"""How many gradients each worker has pushed per second, over all its processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker_service.fleet_state import States


@dataclass
class _Span:
    """A process of a worker: its counts at the first heartbeat after its first gradient, and at the newest gradient."""

    process: str
    since: float
    counted: int
    until: float
    count: int


class WorkerRates:
    """Measures the rate of each worker while it pushes gradients; fed by the chief's heartbeats, from any thread.

    The time before a process's first gradient, in which it builds its step, does not count, nor that after its last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._spans: dict[int, list[_Span]] = {}

    def update(self, states: States) -> None:
        """Reads the workers' counts, as ps 0 has them."""
        if not states or states[0] is None:
            return
        now = self._clock()
        with self._lock:
            for worker in states[0].workers:
                if worker.pushed:
                    self._count(worker.index, worker.process, worker.pushed, now)

    def gradients_per_sec(self) -> dict[int, float]:
        """By worker index; without a worker of which less than two counts are known."""
        with self._lock:
            return {index: rate for index, spans in self._spans.items() if (rate := _rate(spans)) is not None}

    def _count(self, index: int, process: str, pushed: int, now: float) -> None:
        spans = self._spans.setdefault(index, [])
        if not spans or spans[-1].process != process:
            spans.append(_Span(process, now, pushed, now, pushed))
        elif pushed > spans[-1].count:
            spans[-1].until, spans[-1].count = now, pushed


def _rate(spans: Sequence[_Span]) -> float | None:
    """Gradients per second over all processes; None if no time has passed."""
    secs = sum(each.until - each.since for each in spans)
    return sum(each.count - each.counted for each in spans) / secs if secs > 0 else None
