"""A ps that accepts connections of workers and sends back each byte, and the connections of a worker."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psfleet
from psfleet.addresses import LOOPBACK, Address
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.server import exchanging
from psfleet.exchange.tls import EncryptedSocket
from psfleet.tls.identity import Identity

WAIT_SECS = 30.0
LOST = (ConnectionError, ssl.SSLError)
GREETING = Greeting(
    version=psfleet.__version__, run="run", generation=1, worker=0, incarnation=1, session="s", carries="replies"
)


class Ps:
    """A ps that sends back each byte, and counts its sessions."""

    def __init__(self) -> None:
        self.num_sessions = 0
        self.refused = ""

    def refusal(self, greeting: Greeting) -> str:
        del greeting
        return self.refused

    def serve(self, greeting: Greeting, pushes: Connection, replies: Connection) -> None:
        del greeting
        self.num_sessions += 1
        while True:
            replies.send([pushes.receive(1)])


@contextmanager
def served(ps: Ps, identity: Identity | None = None) -> Iterator[int]:
    address = Address(LOOPBACK, 1)
    with exchanging(address, identity, ps.refusal, ps.serve) as port:
        yield port


@contextmanager
def connected(port: int, context: ssl.SSLContext | None = None, name: str = "ps") -> Iterator[Connection]:
    sock = socket.create_connection((LOOPBACK, port), WAIT_SECS)
    with closing(sock):
        encrypted = None if context is None else EncryptedSocket(sock, context, name)
        connection = Connection(sock, encrypted)
        yield connection
        connection.close()


def greeted(connection: Connection, greeting: Greeting = GREETING, **changes: object) -> str:
    send_text(connection, greeting.model_copy(update=changes))
    return receive_text(connection, Answer).refusal


@contextmanager
def session(port: int, context: ssl.SSLContext | None = None, session: str = "s") -> Iterator[tuple[Connection, ...]]:
    """The connections of pushes and of replies."""
    with connected(port, context) as replies, connected(port, context) as pushes:
        assert greeted(replies, session=session) == ""
        assert greeted(pushes, session=session, carries="pushes") == ""
        yield pushes, replies
