"""A run's compose file on a standing fleet: its workers are on the fleet's network, and train on the fleet's ps."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.manifests.compose.mounts import certificate_mount
from psfleet.manifests.container import TLS
from psfleet.manifests.on_fleet import OnFleet
from psfleet.service import settings

ON_FLEET = "psfleet.on-fleet"
"""Label of the containers of such a run: the fleet's name."""


def require_no_way_out(job: Job, fleet: str) -> None:
    """Checks that a job's ps need neither a volume nor a way out, which those of a standing fleet do not have.

    Raises:
        BadJobError: They do.
    """
    needs = {
        "checkpoint.shared is true, expected false": job.checkpoint.shared,
        f"checkpoint.store is {job.checkpoint.store}, expected null": job.checkpoint.store is not None,
    }
    for problem, is_needed in needs.items():
        if is_needed:
            raise BadJobError(f"{problem} on fleet {fleet}: its ps have no volume and no way out")


def moved(content: dict[str, Any], network: str, place: OnFleet, closed: str, outside: str) -> dict[str, Any]:
    """A rendered run, moved to the network of a standing fleet, with certificates of that fleet's authority.

    Args:
        content: Of the run with `fleet.ps_addresses`; it is changed.
        network: The engine's name of the fleet's network.
        closed: Name of the run's own network, which the other one replaces.
        outside: Name of the network with a way out, which workers need for ps elsewhere only.
    """
    for service in content["services"].values():
        service["labels"][ON_FLEET] = place.fleet
        if settings.RUN in (environment := service.get("environment", {})):
            environment[settings.RUN] = place.run
        if isinstance(service["networks"], dict) and closed in service["networks"]:
            service["networks"].pop(outside, None)
        mounts = service["volumes"]
        # A folder of certificates is named by its role.
        roles = [PurePosixPath(each["source"]).name for each in mounts if each["target"] == TLS]
        others = [each for each in mounts if each["target"] != TLS]
        service["volumes"] = [*others, *(certificate_mount(place.fleet, role) for role in roles)]
    content["networks"][closed] = {"external": True, "name": network}
    return content
