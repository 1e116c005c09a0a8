"""Health probes of this process: whether a SIGTERM came because they failed, or because its pod was deleted.

The kubelet sends SIGTERM in both cases. A process that is deleted, evicted or suspended leaves without fault; one whose
probes fail was stuck, and would be started again for ever if that were not counted as a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PROBE_SECS = 20
"""Interval of the liveness probe; with TLS each probe starts a Python process, which takes 0.2 s of one core."""
START_PROBE_SECS = 5
"""Interval of the startup probe."""
PROBE_LIMIT_SECS = 15
"""Timeout of each probe."""
PROBE_FAILURES = 3
"""Number of failed liveness probes in a row after which the kubelet ends the container."""
SILENT_SECS = 2.0 * PROBE_SECS
"""A process without a fault was probed at most `PROBE_SECS` + `PROBE_LIMIT_SECS` ago; one that is ended because of its
probes has answered none of `PROBE_FAILURES`, and was probed with success more than 45 s ago."""
START_FRACTION = 0.8
"""The kubelet counts `deadlines.start_secs` from the container's start, which is some seconds before this process's."""


class ProbeRecord:
    """When this process last answered a health probe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._answered: float | None = None

    def note_answer(self) -> None:
        """Records an answer."""
        self._answered = self._clock()

    def failed_secs(self, start_secs: float) -> float:
        """For how many seconds no probe was answered, if so many are a failure, otherwise 0.

        Args:
            start_secs: Timeout of the startup probe, which is the first to be answered.
        """
        if self._answered is None:
            silent, limit = self._clock() - self._started, START_FRACTION * start_secs
        else:
            silent, limit = self._clock() - self._answered, SILENT_SECS
        return silent if silent > limit else 0.0
