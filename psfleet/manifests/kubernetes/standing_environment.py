"""The environment of the pods of a standing fleet, and of those of its clients."""

from __future__ import annotations

from typing import Any

from psfleet.addresses import DATA_PORT
from psfleet.job.fleet_access import FleetAccess
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import POD_INDEX, component_name
from psfleet.service import settings
from psfleet.service.library_variables import FOR_TENSORFLOW

Object = dict[str, Any]

HOST = "PSFLEET_HOST"
"""The address of a client's pod. Its name would be known to DNS only after a while."""


def of_server(access: FleetAccess, component: str, tls: bool) -> list[Object]:
    """The environment of the ps or workers of a fleet."""
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX}']"}}
    host = f"{component_name(access.name, component)}-$({settings.INDEX}).{access.name}"
    return [
        {"name": settings.INDEX, "valueFrom": index},
        *_values({**_of_all(access, tls), settings.ADDRESS: f"{host}:{DATA_PORT}"}),
    ]


def of_client(access: FleetAccess, index: int, tls: bool) -> list[Object]:
    """The environment of a client, whose script may import TensorFlow before psfleet."""
    values = {
        **_of_all(access, tls),
        settings.INDEX: str(index),
        settings.ADDRESS: f"$({HOST}):{DATA_PORT}",
        **FOR_TENSORFLOW,
        # Output appears as it is printed.
        "PYTHONUNBUFFERED": "1",
        # The images forbid it: a script finds modules in its own folder.
        "PYTHONSAFEPATH": "",
    }
    return [{"name": HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, *_values(values)]


def _of_all(access: FleetAccess, tls: bool) -> dict[str, str]:
    return {settings.FLEET: access.model_dump_json(), **({settings.TLS: container.TLS} if tls else {})}


def _values(values: dict[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]
