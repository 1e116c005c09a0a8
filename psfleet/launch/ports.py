"""Free ports on this machine, in pairs: TensorFlow's, and the control plane's behind it."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from psfleet.cluster import Address
from psfleet.errors import LostPeerError

LOW, HIGH = 15000, 30000
"""Below the ports that Linux gives to outgoing connections (32768 and up), so that none takes one meanwhile."""
ATTEMPTS = 1000


def free_addresses(count: int) -> list[Address]:
    """Addresses on loopback of which nobody uses either port.

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
            addresses.append(Address("127.0.0.1", port))
    raise LostPeerError(f"no {count} pairs of free ports between {LOW} and {HIGH}")
