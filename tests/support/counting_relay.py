"""A TCP relay on loopback that counts the bytes that pass: what a process receives from a server, and sends to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from psfleet.addresses import LOOPBACK, Address

PIECE = 1 << 16


@dataclass
class Counted:
    """What has passed.

    Attributes:
        address: Of the relay.
        to_server: Bytes that clients have sent.
        from_server: Bytes that the server has sent.
    """

    address: Address
    to_server: int = 0
    from_server: int = 0


@contextmanager
def counting_relay(server: Address) -> Iterator[Counted]:
    """Relays all connections to a server until the block ends."""
    listener = socket.create_server((LOOPBACK, 0))
    counted = Counted(Address(LOOPBACK, listener.getsockname()[1]))
    ends: list[socket.socket] = [listener]

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                other = socket.create_connection((server.host, server.port))
                ends.extend((client, other))
                for source, target in ((client, other), (other, client)):
                    threading.Thread(target=relay, args=(source, target, source is client), daemon=True).start()

    def relay(source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                target.sendall(data)
                counted.to_server += len(data) * is_client
                counted.from_server += len(data) * (not is_client)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        thread.join(5.0)
