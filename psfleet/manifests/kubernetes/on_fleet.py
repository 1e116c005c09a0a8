"""Runs on a standing fleet: their id there, and what its ps lack for a run."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Self

from psfleet.errors import BadJobError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job


@dataclass(frozen=True)
class OnFleet:
    """The place of a run on a standing fleet.

    Attributes:
        fleet: The fleet's name.
        run: The run's id. Its ps may still have the shards of an earlier run of this name, whose chief was lost before
            it could end the run.
    """

    fleet: str
    run: str

    @classmethod
    def of_new_run(cls, job: Job, fleet: str) -> Self:
        """The place of a new start of a run."""
        return cls(fleet, f"{job.name}-{secrets.token_hex(4)}")


def require_served(job: Job, file: FleetFile) -> None:
    """Checks that a job needs nothing of its ps that those of a standing fleet lack.

    Raises:
        BadJobError: It does.
    """
    where = f"on fleet {file.name}"
    if job.tls and not file.tls:
        raise BadJobError(f"tls is true, expected false {where}, whose file has tls: false")
    if job.checkpoint.shared:
        raise BadJobError(f"checkpoint.shared is true, expected false {where}: its ps do not mount the run's volume")
    if job.checkpoint.store is not None and not file.kubernetes.egress:
        raise BadJobError(
            f"checkpoint.store is {job.checkpoint.store}, expected null {where}: its ps have no way out, which "
            "kubernetes.egress of the fleet file opens"
        )
