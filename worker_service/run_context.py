"""The values of one run that all parts of a worker share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from psfleet.checkpoint.location import Folder, root_of
from psfleet.checkpoint.store_lease import StoreLease
from psfleet.control.fleet_client import FleetClient
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.traced_update import TracedUpdate, optimizer_name
from psfleet.tls.data_plane import DataPlane

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity


@dataclass(frozen=True)
class RunContext:
    """One run as one worker sees it: built once the program is loaded, never changed.

    Attributes:
        run: Name of the run.
        index: Of this worker; 0 is the chief.
        incarnation: Of this process as the owner of the index: the highest one wins.
        job: The resolved job.
        layout: Of the program's tensors.
        tasks: The data plane: addresses of TensorFlow's servers.
        fleet: The control planes of all ps.
        stop: Set by a signal.
        out: The run's folder.
        job_digest: Of the job before it was resolved, see `psfleet.job.agreement`.
        update: Of the program's own optimizer, which the chief sends to the ps; in averaging mode all workers have it;
            None: the optimizer is psfleet's.
        lease: On the prefix of the store; None: the run has no store, or this is not its chief.
        is_shared: Whether every ps reads and writes checkpoints, too; False: they travel over the control plane.
        identity: TLS credentials of this process; None: connections are plain.
        towers: Devices over which this worker divides a batch; empty: it uses one. See `tower_devices`.
    """

    run: str
    index: int
    incarnation: int
    job: Job
    layout: Layout
    tasks: DataPlane
    fleet: FleetClient
    stop: Stop
    out: Path
    job_digest: str
    update: TracedUpdate | None = None
    is_shared: bool = True
    lease: StoreLease | None = None
    identity: Identity | None = None
    towers: tuple[str, ...] = ()

    @property
    def optimizer(self) -> str:
        """The name of the optimizer in checkpoints."""
        return optimizer_name(self.job, self.update)

    @property
    def checkpoints_root(self) -> Folder:
        """The folder of the run's checkpoints."""
        return root_of(self.out, self.job)

    def require_lease(self) -> None:
        """Checks that the store, if there is one, is this run's.

        Raises:
            StoreError: Another fleet may have it.
        """
        if self.lease is not None:
            self.lease.require()


def shares_folder(settings: Settings, job: Job) -> bool:
    """Whether the ps of a run read and write its checkpoints.

    They do in a store, and in the run's folder if it is shared, as all processes of one machine do that a launcher
    starts.
    """
    is_local = settings.launched > 0 and all(address.is_loopback for address in settings.ps)
    return job.checkpoint.store is not None or job.checkpoint.shared or is_local
