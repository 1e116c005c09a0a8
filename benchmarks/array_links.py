"""Connections that carry arrays, for contenders that use no library for them: Unix sockets at 127.0.0.1, or TCP."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

import numpy as np

from psfleet.addresses import Address
from psfleet.exchange.connection import send_pieces, set_options
from psfleet.exchange.unix_sockets import connected_beside, listening_beside

CONNECT_SECS = 120.0


class Link:
    """A connection that carries float32 arrays; both ends know their sizes."""

    def __init__(self, connection: socket.socket) -> None:
        set_options(connection)
        connection.settimeout(None)
        self._socket = connection

    def send(self, pieces: Iterable[np.ndarray]) -> None:
        """Sends arrays one after the other, without a copy that joins them."""
        send_pieces(self._socket, [piece.data.cast("B") for piece in pieces if piece.size])

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
    unix = listening_beside(address.port) if address.is_loopback else None
    with unix or socket.create_server((address.host, address.port)) as server:
        server.settimeout(CONNECT_SECS)
        return [Link(server.accept()[0]) for _ in range(count)]


def connected(address: Address) -> Link:
    """A connection with an owner, which may not listen yet."""
    deadline = time.monotonic() + CONNECT_SECS
    while True:
        if address.is_loopback and (unix := connected_beside(address.port, CONNECT_SECS)):
            return Link(unix)
        try:
            return Link(socket.create_connection((address.host, address.port), CONNECT_SECS))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
