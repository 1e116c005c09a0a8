"""Finds free ports on this machine, in pairs: TensorFlow's port, and the control plane's after it."""

from __future__ import annotations

import atexit
import random
import socket
import sys
from collections import deque
from collections.abc import Sequence

from psfleet.addresses import LOOPBACK, Address
from psfleet.errors import BadJobError, LostPeerError

LOW, HIGH = 15000, 30000
"""Range of ports, below those of outgoing connections on Linux (32768 and up), which could take a port meanwhile."""
MAX_RESERVED = 1024
"""Number of pairs that this process keeps reserved; beyond it, the oldest reservations are released."""


def free_addresses(count: int) -> list[Address]:
    """Addresses on loopback with two free ports each, reserved against other launchers of this machine.

    Processes need seconds before they listen, and do not listen while they are restarted.

    Raises:
        LostPeerError: There are not so many.
        BadJobError: There never are.
    """
    most = (HIGH - LOW) // 2
    if count > most:
        raise BadJobError(
            f"{count} processes on this machine, expected at most {most}, which have a pair of ports each"
        )
    addresses: list[Address] = []
    # Not the generator of `random`, which programs seed: two with one seed would try the same ports.
    ports = iter(random.SystemRandom().sample(range(LOW, HIGH, 2), most))
    while len(addresses) < count:
        port = next(ports, None)
        if port is None:
            raise LostPeerError(f"no {count} pairs of free ports between {LOW} and {HIGH}")
        address = Address(LOOPBACK, port)
        # Reserved first: the check binds both ports, and the process that has them reserved may be about to listen.
        name = _reserved_name(port)
        if name is None:
            continue
        if _is_free(address):
            addresses.append(address)
            _keep(name)
        else:
            name.close()
    return addresses


def reserve(addresses: Sequence[Address]) -> None:
    """Reserves the ports of processes that run already; those that another launcher has reserved stay its own."""
    for address in addresses:
        name = _reserved_name(address.port)
        if name is not None:
            _keep(name)


def _is_free(address: Address) -> bool:
    """Whether no process listens on either port, on any interface."""
    for port in (address.port, address.control_port):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                return False
    return True


_reserved: deque[socket.socket] = deque()


def _reserved_name(port: int) -> socket.socket | None:
    """Reserves a port by a name that only one process of a machine can have.

    The name is an abstract socket address of Linux (unix(7)): not a file, and free again however this process ends.

    Returns:
        The socket that has the name, or None if the port is reserved. Elsewhere than on Linux the socket has no name.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            holder.bind(f"\0psfleet-port-{port}")
    except OSError:
        holder.close()
        return None
    return holder


def _keep(name: socket.socket) -> None:
    """Keeps a port reserved while this process lives, or until `MAX_RESERVED` others were reserved after it."""
    _reserved.append(name)
    _release(keep=MAX_RESERVED)


@atexit.register
def _release(keep: int = 0) -> None:
    """Releases the oldest reservations, until `keep` are left."""
    while len(_reserved) > keep:
        _reserved.popleft().close()
