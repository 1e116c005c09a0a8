"""What a run needs of the ps of a standing fleet in a cluster."""

from __future__ import annotations

from psfleet.errors import BadJobError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job


def require_served(job: Job, file: FleetFile) -> None:
    """Checks that a job's ps need no TLS, volume or way out that those of a standing fleet do not have.

    Raises:
        BadJobError: They do.
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
