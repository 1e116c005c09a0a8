"""A worker's process as a member of its run: what it has once it has joined, until it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psfleet.control.fleet_client import FleetClient
from psfleet.errors import DataStallError, StoppedError
from psfleet.job.job import Job
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from worker_service.chief.disk import Disk
from worker_service.chief.unbuilt_stop import save_trained
from worker_service.controls import Controls
from worker_service.fleet_state import trains_on
from worker_service.heartbeat import Heartbeat
from worker_service.metrics import WorkerMetrics
from worker_service.progress import TrainingProgress
from worker_service.run_end import report_failure


@dataclass(frozen=True)
class MemberProcess:
    """This process, which has an index.

    Attributes:
        job: As the launcher has resolved it.
        incarnation: Of this process as the owner of the index.
        program: Digest of its training program.
        disk: Of the chief; knows what this process waits for in the run folder.
        controls: Its servicers, which answer that it starts until they are bound.
    """

    settings: Settings
    job: Job
    fleet: FleetClient
    stop: Stop
    progress: TrainingProgress
    heartbeat: Heartbeat
    metrics: WorkerMetrics
    incarnation: int
    program: str
    disk: Disk
    controls: Controls

    @property
    def index(self) -> int:
        """Of this worker; 0 is the chief."""
        return self.heartbeat.index

    def save_trained(self) -> bool:
        """Saves what the fleet has trained without this chief, which stops; see `unbuilt_stop`."""
        return save_trained(self.settings, self.job, self.fleet, self.stop, self.incarnation, self.disk)

    def stall_report(self) -> Callable[[DataStallError | StoppedError], None]:
        """A function that ends the run, unless a program stalls while the fleet trains on; a stop saves before it."""
        before = self.fleet.describe()

        def report(error: DataStallError | StoppedError) -> None:
            if isinstance(error, DataStallError):
                error.ends_run = not trains_on(before, self.fleet.describe())
            try:
                if isinstance(error, StoppedError) and self.index == 0 and self.stop.must_save():
                    self.save_trained()
            finally:
                # Also if nothing could be saved: the others would wait for this chief.
                report_failure(self.fleet, error, self.index, self.stop)

        return report
