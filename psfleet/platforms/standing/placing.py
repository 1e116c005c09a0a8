"""Places a run on a standing fleet."""

from __future__ import annotations

from pathlib import Path

from psfleet.errors import UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.job import Job, parse_job
from psfleet.platforms.standing.fleet_folder import find
from psfleet.platforms.standing.platform import StandingPlatform


def reached(name: str) -> FleetAccess:
    """What runs and clients know of a fleet of this user on this machine.

    Raises:
        UsageError: There is no such fleet, or it is down.
        BadJobError: It is of another version of psfleet.
    """
    return find(name).access().require_version()


def certificates_of(name: str) -> Path | None:
    """The certificates of a fleet of this user on this machine, with a folder for each role; None: it has no TLS."""
    folder = find(name).certificates
    return folder if folder.is_dir() else None


def on_fleet(job: Job, name: str, platform: StandingPlatform | None = None) -> Job:
    """A job that trains on the ps of a standing fleet, with workers of its own.

    The number of ps is the fleet's, whatever the job's `fleet.ps` is: a checkpoint can be restored on any number. So is
    `tls`, which processes of this machine need no more than those of any run here.

    Args:
        platform: Of the fleet; None: this machine.

    Raises:
        UsageError: There is no such fleet, it is down, the job names ps itself, or requires TLS that the fleet lacks.
        BadJobError: The job cannot be trained on that number of ps, or the fleet is of another version of psfleet.
    """
    if job.fleet.ps_addresses is not None:
        raise UsageError(f"--fleet {name}: fleet.ps_addresses is set, expected one of them")
    access = reached(name) if platform is None else platform.access(name).require_version()
    if job.tls and not access.tls and platform is not None:
        raise UsageError(f"--fleet {name}: the job has tls: true, expected a fleet with it, or --set tls=false")
    content = job.model_dump(mode="json")
    content["fleet"] |= {"ps": len(access.ps), "ps_addresses": access.ps}
    content["tls"] = access.tls
    return parse_job(content, f"job {job.name} on fleet {name}")
