"""The record of a standing fleet, a ConfigMap of its namespace: its file, and the access of processes and clients."""

from __future__ import annotations

from pydantic import ValidationError

import psfleet
from psfleet.errors import BadJobError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.kubernetes.names import PS, STANDING, WORKER
from psfleet.manifests.kubernetes.standing import ACCESS_KEY, FILE_KEY, addresses
from psfleet.platforms.kubernetes.api import Cluster


def recorded(cluster: Cluster, name: str) -> tuple[FleetFile, FleetAccess] | None:
    """The resolved file of a fleet and what clients know of it, from its ConfigMap; None: there is no such fleet.

    Raises:
        BadJobError: They are of a version of psfleet with other fields.
    """
    data = cluster.config_map(name, STANDING)
    if not data:
        return None
    source = f"ConfigMap {name} of fleet {name}"
    try:
        file = FleetFile.model_validate_json(data.get(FILE_KEY, ""))
    except ValidationError as error:
        raise BadJobError(
            f"{source}: {FILE_KEY} is of another version of psfleet, expected {psfleet.__version__}: `psfleet "
            f"fleet down {name} --on kubernetes` ends the fleet"
        ) from error
    return file, FleetAccess.from_json(data.get(ACCESS_KEY, ""), f"{source}: {ACCESS_KEY}")


def new_access(file: FleetFile) -> FleetAccess:
    """What processes and clients know of a new start of a fleet."""
    ps, workers = addresses(file, PS, file.fleet.ps), addresses(file, WORKER, file.fleet.workers)
    return FleetAccess.of_new_start(file, ps, workers)
