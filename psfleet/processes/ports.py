"""Finds free ports on this machine, in pairs: TensorFlow's port, and the control plane's after it."""

from __future__ import annotations

import atexit
import random
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from psfleet.addresses import LOOPBACK, Address
from psfleet.errors import LostPeerError

LOW, HIGH = 15000, 30000
"""Range of ports, below those of outgoing connections on Linux (32768 and up), which could take a port meanwhile."""
ATTEMPTS = 1000
MAX_RESERVED = 1024
"""Number of pairs that this process keeps reserved; beyond it, the oldest reservations are released."""


def free_addresses(count: int) -> list[Address]:
    """Addresses on loopback with two free ports each, reserved against other launchers of this machine.

    Processes need seconds before they listen, and do not listen while they are restarted.

    Raises:
        LostPeerError: None were found.
    """
    addresses: list[Address] = []
    with ExitStack() as held:
        for _ in range(ATTEMPTS):
            if len(addresses) == count:
                return addresses
            address = Address(LOOPBACK, random.randrange(LOW, HIGH, 2))
            try:
                for port in (address.port, address.control_port):
                    probe = held.enter_context(socket.socket())
                    probe.bind(("", port))
            except OSError:
                continue
            if _reserve(address.port):
                addresses.append(address)
    raise LostPeerError(f"no {count} pairs of free ports between {LOW} and {HIGH}")


def reserve(addresses: Sequence[Address]) -> None:
    """Reserves the ports of processes that run already; those that another launcher has reserved stay its own."""
    for address in addresses:
        _reserve(address.port)


_reserved: deque[socket.socket] = deque()


def _reserve(port: int) -> bool:
    """Reserves a port by a name that only one process of a machine can have; returns whether the name was free.

    The name is an abstract socket address of Linux (unix(7)): not a file, and free again however this process ends.
    """
    if sys.platform != "linux":
        return True
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0psfleet-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    _release(keep=MAX_RESERVED)
    return True


@atexit.register
def _release(keep: int = 0) -> None:
    """Releases the oldest reservations, until `keep` are left."""
    while len(_reserved) > keep:
        _reserved.popleft().close()
