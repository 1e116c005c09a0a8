"""Connects a client to a standing fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from psfleet.addresses import Address
from psfleet.control.attendance import SecuredClient
from psfleet.control.credentials import read_identity
from psfleet.errors import BadJobError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.platforms.standing.placing import certificates_of, reached
from psfleet.processes.ports import free_addresses
from psfleet.service import process_environment, settings
from psfleet.tls.data_plane import Direct
from psfleet.tls.fleet_plane import lasting_plane

if TYPE_CHECKING:
    from psfleet.tf.client import Fleet


CLIENT = "client"


def connect(name: str | None = None) -> Fleet:
    """Connects this process to a standing fleet as a client.

    Imports TensorFlow, and starts a TensorFlow server of this process, which runs until the process ends: on loopback,
    or in a container of `psfleet run --on ...` on the fleet's network.

    Args:
        name: Of a fleet of this user on this machine; None: the one of `psfleet run CLIENT.py --fleet NAME`.

    Returns:
        The fleet; its processes are asked only when a session or queue is opened.

    Raises:
        UsageError: There is no such fleet, it is down, or TensorFlow is not installed.
        BadJobError: The fleet is of another version of psfleet; or with TLS, the certificate or stunnel is missing.
    """
    access, credentials = _access(name)
    process_environment.prepare_tensorflow()
    from psfleet.tf.client import Fleet
    from psfleet.tf.client.own_server import own_server

    identity = read_identity(credentials, CLIENT)
    if all(Address.parse(text).is_loopback for text in (*access.ps, *access.workers)):
        client = None if identity is None else SecuredClient(identity)
        return Fleet(access, own_server(lambda: Direct(free_addresses(1)[0], ()), access.device), client)
    own = settings.read()
    client = None if identity is None else SecuredClient(identity, own.index, own.address)
    return Fleet(access, own_server(lambda: lasting_plane(own, CLIENT, identity), access.device), client)


def _access(name: str | None) -> tuple[FleetAccess, Path | None]:
    """What this process knows of the fleet, and the folder of its certificate for it; None: the fleet has no TLS."""
    given = settings.fleet_access()
    if given is not None and name in (None, given.name):
        credentials = settings.read().tls if given.tls else None
        if given.tls and credentials is None:
            raise BadJobError(f"fleet {given.name} has tls: true, expected {settings.TLS}, the folder of a certificate")
        return given, credentials
    if name is None:
        raise UsageError(
            "psfleet.connect() without a name, expected a process of `psfleet run CLIENT.py --fleet NAME`, or a name"
        )
    access, certificates = reached(name), certificates_of(name)
    return access, None if certificates is None else certificates / CLIENT
