"""Renders a standing fleet as a docker compose file; its clients are containers of their own on its network."""

from __future__ import annotations

from typing import Any

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.container import Limits
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.compose.limits import limited
from psfleet.manifests.compose.mounts import certificate_mount, duration, plain
from psfleet.manifests.compose.render import (
    FLEET,
    ROLE,
    Service,
    closed_network,
    container_hardening,
    health_check,
    project,
)
from psfleet.manifests.container import FAILURE, TLS
from psfleet.manifests.yaml_text import dump
from psfleet.service import settings

STANDING = "psfleet.standing"
"""Label of the containers of a standing fleet and of its clients: the resolved fleet file."""


def service_of(role: str, index: int) -> str:
    """The compose service of a process, which is its host name on the fleet's network, too."""
    return f"{role}-{index}"


def addresses(role: str, number: int) -> list[str]:
    """The addresses of the TensorFlow servers of a role."""
    return [Address(service_of(role, index), DATA_PORT).data for index in range(number)]


def file_text(file: FleetFile, access: FleetAccess) -> str:
    """A compose file as YAML."""
    return dump(render(file, access))


def render(file: FleetFile, access: FleetAccess) -> dict[str, Any]:
    """A compose file's content: a service for each ps and plain worker, and a network that nothing else is on.

    Args:
        access: What processes and clients know of the fleet; its addresses are those of `addresses`.
    """
    sizes = (
        ("ps", file.fleet.ps, file.container.ps_image, file.container.ps),
        ("worker", file.fleet.workers, file.container.worker_image, file.container.worker),
    )
    services = {
        service_of(role, index): _service(file, access, role, index, image, limits)
        for role, number, image, limits in sizes
        for index in range(number)
    }
    return {"name": project(file.name), "services": services, "networks": {FLEET: closed_network()}}


def _service(file: FleetFile, access: FleetAccess, role: str, index: int, image: str, limits: Limits) -> Service:
    address = Address(service_of(role, index), DATA_PORT)
    return {
        "image": image,
        "labels": {ROLE: role, STANDING: plain(file.model_dump_json())},
        "environment": {
            settings.FLEET: plain(access.model_dump_json()),
            settings.INDEX: str(index),
            settings.ADDRESS: address.data,
            settings.FAILURE: FAILURE,
            **({settings.TLS: TLS} if file.tls else {}),
        },
        "volumes": [certificate_mount(file.name, role)] if file.tls else [],
        # Also after a restart of the engine; only `psfleet fleet down` ends the fleet. A process that would only fail
        # again does not end (see `psfleet.service.lasting_failure`).
        "restart": "unless-stopped",
        "stop_grace_period": duration(file.deadlines.stop_secs),
        "networks": [FLEET],
        "healthcheck": health_check(file.deadlines.start_secs),
        **container_hardening(),
        **limited(limits),
    }
