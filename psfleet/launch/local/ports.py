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
"""Pairs that this process keeps for itself: those that it took last."""


def free_addresses(count: int) -> list[Address]:
    """Addresses on loopback of which nobody uses either port, and which no other launcher of this machine gets.

    Their processes need seconds before they listen, and leave the port alone while they are started again.

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
    """Takes a name for a port that one process of a machine can have at a time; whether it was there to be taken.

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
    """Gives names back, the oldest first."""
    while len(_reserved) > but:
        _reserved.popleft().close()
