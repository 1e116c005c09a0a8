"""Free ports on this machine, in pairs: TensorFlow's, and the control plane's behind it."""

from __future__ import annotations

import atexit
import random
import socket
import sys
from collections import deque
from contextlib import ExitStack

from psfleet.addresses import Address
from psfleet.errors import LostPeerError

LOW, HIGH = 15000, 30000
"""Below the ports that Linux gives to outgoing connections (32768 and up), so that none takes one meanwhile."""
ATTEMPTS = 1000
RESERVED = 1024
"""Number of pairs that this process keeps reserved, the last ones."""


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
            port = random.randrange(LOW, HIGH, 2)
            try:
                for taken in (port, port + 1):
                    probe = held.enter_context(socket.socket())
                    probe.bind(("", taken))
            except OSError:
                continue
            if _reserve(port):
                addresses.append(Address("127.0.0.1", port))
    raise LostPeerError(f"no {count} pairs of free ports between {LOW} and {HIGH}")


_reserved: deque[socket.socket] = deque()


def _reserve(port: int) -> bool:
    """Reserves a port by a name that only one process of a machine can hold; whether it was free.

    Linux's abstract socket addresses (unix(7)) are no files, and free again when this process ends, however it does.
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
    _release(RESERVED)
    return True


@atexit.register
def _release(but: int = 0) -> None:
    """Releases reservations, the oldest first."""
    while len(_reserved) > but:
        _reserved.popleft().close()
