"""The values of one run that all parts of a worker share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psfleet.addresses import Address
from psfleet.control.fleet_client import FleetClient
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.run_folder import CHECKPOINTS
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.traced_update import TracedUpdate, optimizer_name


@dataclass(frozen=True)
class TaskAddresses:
    """Where TensorFlow's servers are reached from this worker: its own, and each ps's in their order."""

    own: Address
    ps: tuple[Address, ...]


@dataclass(frozen=True)
class RunContext:
    """One run as one worker sees it: built once the program is loaded, never changed.

    Attributes:
        run: Name of the run.
        index: Of this worker; 0 is the chief.
        incarnation: Of this process as the owner of the index: the highest one wins.
        job: The resolved job.
        layout: Of the program's tensors.
        tasks: Addresses of the data plane.
        fleet: The control planes of all ps.
        stop: Set by a signal.
        out: The run's folder.
        update: Of the program's own optimizer, which the chief sends to the ps; None: the optimizer is psfleet's.
        is_shared: Whether every ps reads and writes `out`, too; False: checkpoints travel over the control plane.
    """

    run: str
    index: int
    incarnation: int
    job: Job
    layout: Layout
    tasks: TaskAddresses
    fleet: FleetClient
    stop: Stop
    out: Path
    update: TracedUpdate | None = None
    is_shared: bool = True

    @property
    def optimizer(self) -> str:
        """The name of the optimizer in checkpoints."""
        return optimizer_name(self.job, self.update)

    @property
    def checkpoints_root(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.out / CHECKPOINTS


def shares_folder(settings: Settings, job: Job) -> bool:
    """Whether the ps of a run read and write its folder, as all processes of one machine do that a launcher starts."""
    is_local = settings.launched > 0 and all(address.is_loopback for address in settings.ps)
    return job.checkpoint.shared or is_local
