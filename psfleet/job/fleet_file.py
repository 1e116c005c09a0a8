"""Schema of a fleet file: where the processes of a standing fleet run; what they train is in job files.

The description of each field is its documentation: `docs/fleets.md` is generated from this schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from psfleet.errors import BadJobError
from psfleet.job.container import Container, Limits, WorkerLimits
from psfleet.job.fields import NonNegativeInt, Positive, PositiveInt, Section
from psfleet.job.gpus import require_workers
from psfleet.job.job_fields import MAX_NAME, NAME_PATTERN
from psfleet.job.kubernetes import Pods, PodsByRole, require_own_folders
from psfleet.job.problems import problem
from psfleet.job.reading import read_mapping
from psfleet.job.sections import Device


class FleetSize(Section):
    """Number of standing processes of each role."""

    ps: PositiveInt = Field(1, description="Number of parameter servers; a run trains on all of them.")
    workers: NonNegativeInt = Field(
        0, description="Number of plain workers, which lend their devices to clients; a run has workers of its own."
    )


class FleetContainer(Section):
    """Containers of the fleet and its clients; processes of this machine have no such limits."""

    ps_image: str = Field(
        Container.model_fields["ps_image"].default, min_length=1, description="Image of the parameter servers."
    )
    worker_image: str = Field(
        Container.model_fields["worker_image"].default,
        min_length=1,
        description="Image of plain workers and of clients: `psfleet-worker`, or one built `FROM` it with the packages "
        "of clients.",
    )
    ps: Limits = Field(default_factory=Limits, description="Limits of each ps.")
    worker: WorkerLimits = Field(
        default_factory=WorkerLimits, description="Limits of each plain worker, and of each client."
    )


class FleetPods(PodsByRole):
    """Pods of the fleet and its clients on Kubernetes; `ps` and `worker` add to what both have. Ignored elsewhere."""

    worker: Pods = Field(default_factory=Pods, description="Of plain workers and of clients only; in the same way.")

    @model_validator(mode="after")
    def _check_folders(self) -> Self:
        require_own_folders(self, ())
        return self


class FleetDeadlines(Section):
    """Timeouts; the error of an expired one names what was waited for."""

    start_secs: Positive = Field(180, description="Timeout of `psfleet fleet up` for all processes to respond.")
    step_secs: Positive = Field(60, description="Timeout for a client's session to open.")
    stall_secs: Positive = Field(600, description="Timeout of a client's call of a queue that names none.")
    stop_secs: Positive = Field(
        60, description="Grace period of `psfleet fleet down` until processes that do not end are killed."
    )


class FleetFile(Section):
    """A fleet that stands until it is taken down."""

    name: str = Field(
        pattern=NAME_PATTERN,
        max_length=MAX_NAME,
        description="Name of the fleet: lower-case letters, digits and dashes.",
    )
    fleet: FleetSize = Field(default_factory=FleetSize, description="Number of processes of each role.")
    device: Device = Field(default_factory=Device, description="Threads and accelerators, of clients, too.")
    deadlines: FleetDeadlines = Field(default_factory=FleetDeadlines, description="Timeouts.")
    container: FleetContainer = Field(default_factory=FleetContainer, description="Containers.")
    kubernetes: FleetPods = Field(default_factory=FleetPods, description="What a cluster requires of the pods.")
    tls: bool = Field(
        False,
        description="Whether traffic between containers is encrypted, and both ends are authenticated, those of runs "
        "and clients included; between processes of one machine that of the control plane.",
    )

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        require_workers(self.device.visible_gpus.worker, self.fleet.workers, "fleet.workers")
        if self.device.replicas != 1:
            raise ValueError(
                f"device.replicas is {self.device.replicas}, expected 1 in a fleet file: towers are those of a job's "
                "workers"
            )
        return self


def load_fleet(path: Path) -> FleetFile:
    """Reads and validates a fleet file.

    Raises:
        UsageError: The file cannot be read.
        BadJobError: The content is not a valid fleet; names each invalid field.
    """
    try:
        return FleetFile.model_validate(read_mapping(path, "fleet file"))
    except ValidationError as error:
        problems = "; ".join(problem(item, FleetFile) for item in error.errors())
        raise BadJobError(f"{path}: {problems}") from error
