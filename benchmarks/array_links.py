"""Connections that carry arrays, for contenders that use no library for them: TCP, or at 127.0.0.1 shared memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence

import numpy as np

from psfleet.addresses import Address
from psfleet.exchange.connection import Connection, send_pieces, set_options
from psfleet.exchange.message_layout import MessageLayout, TensorKind
from psfleet.exchange.shared_memory import FilledMemory, ReceivedMemory
from psfleet.exchange.unix_sockets import connected_beside, listening_beside

CONNECT_SECS = 120.0
DONE = b"d"


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


class SharedLink:
    """A Unix socket between two processes, each of which has an array that the other one fills.

    Args of the constructor, which waits for the other end's:
        connection: A Unix socket.
        size: Of the array of this end.

    Attributes:
        array: float32 `[size]`, at an address that TensorFlow takes a feed from without a copy.
    """

    def __init__(self, connection: socket.socket, size: int) -> None:
        self._connection = Connection(connection)
        self._connection.set_timeout(None)
        received = ReceivedMemory({"": MessageLayout([TensorKind(np.dtype(np.float32), size)])})
        received.share(self._connection)
        self._filled = FilledMemory.received(self._connection)
        (self.array,) = received.arrived("", received.free(""))

    def send(self, pieces: Sequence[np.ndarray], first: int = 0) -> None:
        """Copies arrays one after the other into the array of the other end, from an element on, and says so.

        Raises:
            RuntimeError: There is no shared memory.
        """
        layout = MessageLayout([TensorKind(np.dtype(np.float32), sum(map(len, pieces)))])
        if not self._filled.put(first * 4, layout, pieces):
            raise RuntimeError("there is no shared memory")
        self._connection.send([DONE])

    def wait(self) -> np.ndarray:
        """Waits until the other end has filled the array, which is returned.

        Raises:
            OSError: The other end is closed.
        """
        self._connection.receive(len(DONE))
        return self.array

    def close(self) -> None:
        """Closes this end."""
        self._connection.close()


def accepted(address: Address, count: int) -> list[socket.socket]:
    """The connections of that many workers."""
    unix = listening_beside(address.port) if address.is_loopback else None
    with unix or socket.create_server((address.host, address.port)) as server:
        server.settimeout(CONNECT_SECS)
        return [server.accept()[0] for _ in range(count)]


def connected(address: Address) -> socket.socket:
    """A connection with an owner, which may not listen yet."""
    deadline = time.monotonic() + CONNECT_SECS
    while True:
        if address.is_loopback and (unix := connected_beside(address.port, CONNECT_SECS)):
            return unix
        try:
            return socket.create_connection((address.host, address.port), CONNECT_SECS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
