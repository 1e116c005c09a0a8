"""The workers that read from a loader, with the counts that they report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from psfleet.control import control_pb2 as pb

LEASE_SECS = 5.0
"""A worker whose last heartbeat is older is not alive; it sends one each second."""
KEPT_SECS = 300.0
"""How long the counts of a worker that is not alive are kept for the chief, which may be starting again."""


@dataclass(frozen=True)
class _Report:
    request: pb.HeartbeatRequest
    heard: float


class Readers:
    """The newest heartbeat of each worker process; from any thread.

    Args of the constructor:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[str, _Report] = {}

    def note(self, request: pb.HeartbeatRequest) -> None:
        """Stores a heartbeat; calls of one process do not overlap."""
        with self._lock:
            now = self._clock()
            self._reports[request.caller.member.process] = _Report(request, now)
            for process, report in list(self._reports.items()):
                if now - report.heard > KEPT_SECS:
                    del self._reports[process]

    def states(self) -> list[pb.Reader]:
        """Each worker process; one whose index another process has is not alive."""
        with self._lock:
            now, reports = self._clock(), list(self._reports.values())
        newest: dict[int, int] = {}
        for report in reports:
            member = report.request.caller.member
            newest[member.index] = max(newest.get(member.index, 0), member.incarnation)
        return [
            pb.Reader(
                member=member,
                is_alive=now - report.heard < LEASE_SECS and newest[member.index] == member.incarnation,
                passes=report.request.passes,
                step=report.request.step,
            )
            for report in reports
            for member in [report.request.caller.member]
        ]
