"""TCP connections that carry arrays, for contenders that use no library for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

import numpy as np

from psfleet.addresses import Address

CONNECT_SECS = 120.0
MAX_PIECES = 512
"""Arrays in one system call, less than IOV_MAX."""


class Link:
    """A TCP connection that carries float32 arrays; both ends know their sizes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._socket = connection

    def send(self, pieces: Iterable[np.ndarray]) -> None:
        """Sends arrays one after the other, without a copy that joins them."""
        left = [piece.data.cast("B") for piece in pieces if piece.size]
        while left:
            sent = self._socket.sendmsg(left[:MAX_PIECES])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def receive(self, array: np.ndarray) -> np.ndarray:
        """Fills an array.

        Raises:
            EOFError: The other end is closed.
        """
        left = array.data.cast("B")
        while left:
            count = self._socket.recv_into(left)
            if not count:
                raise EOFError("the other end is closed")
            left = left[count:]
        return array

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


def accepted(address: Address, count: int) -> list[Link]:
    """The connections of that many workers."""
    with socket.create_server((address.host, address.port)) as server:
        server.settimeout(CONNECT_SECS)
        return [Link(server.accept()[0]) for _ in range(count)]


def connected(address: Address) -> Link:
    """A connection with an owner, which may not listen yet."""
    deadline = time.monotonic() + CONNECT_SECS
    while True:
        try:
            return Link(socket.create_connection((address.host, address.port), CONNECT_SECS))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
