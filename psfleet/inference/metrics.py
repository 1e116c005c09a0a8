"""Metrics of a service for Prometheus: queries by result, their times, and the members in each answer."""

from __future__ import annotations

import threading
from collections import Counter

from psfleet.service.metrics import PREFIX, Metric, Reading, Readings, Times

FRONT = "front"
DONE = "done"
"""Result of a query with an answer; others have the name of the error's status."""
CANCELLED = "cancelled"
"""Result of a query that its client has given up."""

ROLES = (FRONT,)
QUERIES = Metric(
    f"{PREFIX}queries",
    "counter",
    "queries",
    ROLES,
    "Queries by protocol (rest, grpc) and result (done, cancelled by the client, or why there is no answer).",
    ("protocol", "result"),
)
QUERY_SECONDS = Metric(
    f"{PREFIX}query_seconds", "histogram", "seconds", ROLES, "Time from a query's arrival to its answer or error."
)
ANSWER_MEMBERS = Metric(
    f"{PREFIX}answers", "counter", "answers", ROLES, "Answers by the number of members they are made of.", ("members",)
)
MEMBERS_READY = Metric(f"{PREFIX}members_ready", "gauge", "members", ROLES, "Members that would be asked now.")
METRICS = (QUERIES, QUERY_SECONDS, ANSWER_MEMBERS, MEMBERS_READY)
"""All metrics of a service, in the order of the documentation."""

QUERY_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class ServiceMetrics:
    """The values of these metrics. Thread-safe.

    Args of the constructor:
        name: Of the model, the label `run`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._results: Counter[tuple[str, str]] = Counter()
        self._members: Counter[int] = Counter()
        self._times = Times(QUERY_BOUNDS)
        self.num_ready = 0

    def add(self, protocol: str, result: str, secs: float, num_members: int = 0) -> None:
        """Adds a query.

        Args:
            protocol: rest or grpc.
            result: `DONE`, `CANCELLED`, or the name of a status in lower case.
            num_members: Of the answer; 0: there is none.
        """
        self._times.add(secs)
        with self._lock:
            self._results[protocol, result] += 1
            if num_members:
                self._members[num_members] += 1

    def read(self) -> list[Readings]:
        """All current values."""
        times = self._times.read()
        with self._lock:
            readings = [
                *(Reading(QUERIES, count, labels) for labels, count in self._results.items()),
                *(Reading(ANSWER_MEMBERS, count, (str(number),)) for number, count in self._members.items()),
                Reading(QUERY_SECONDS, times),
                Reading(MEMBERS_READY, self.num_ready),
            ]
        return [Readings(self._name, FRONT, 0, readings)]
