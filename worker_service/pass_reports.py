"""Reports to each loader what this worker has read of all passes, with dynamic sharding."""

from __future__ import annotations

import logging
import threading

from psfleet.control.fleet_client import FleetClient
from psfleet.errors import PsfleetError
from worker_service.heartbeat_calls import BEAT_SECS
from worker_service.pass_counts import PassCounts
from worker_service.progress import TrainingProgress

logger = logging.getLogger("psfleet.worker")

REPORT_SECS = 0.1
"""At least between two reports to a loader: passes over a small part can end each millisecond."""


class PassReports:
    """Sends the counts every second, and when they ask for it; on a thread for each loader: one may be frozen.

    Attributes:
        counts: What is reported.
    """

    def __init__(self, fleet: FleetClient, num_loaders: int, progress: TrainingProgress) -> None:
        self._fleet = fleet
        self._progress = progress
        self._due = [threading.Event() for _ in range(num_loaders)]
        self.counts = PassCounts(self._report_now)

    def start(self) -> None:
        """Starts the threads, which end with the process."""
        for loader in range(len(self._due)):
            threading.Thread(target=self._run, args=[loader], name=f"pass-reports-{loader}", daemon=True).start()

    def _report_now(self) -> None:
        for due in self._due:
            due.set()

    def _run(self, loader: int) -> None:
        due, pause = self._due[loader], threading.Event()
        while not pause.wait(REPORT_SECS):
            due.wait(BEAT_SECS)
            due.clear()
            try:
                # First the step: the counts have all batches up to it.
                step = self._progress.step
                self._fleet.report_passes(loader, self.counts.newest(), step)
            except PsfleetError as error:
                logger.debug("a loader has not received what was read: %s", error)
