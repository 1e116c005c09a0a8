"""Accepts the connections of workers at a ps, and gives each pair of them to a handler."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psfleet
from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.tls import require_role, server_context

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

GREETING_SECS = 10.0
"""For the greeting on a new connection, and for the second connection of a session."""
MAX_GREETINGS = 512
"""Connections that have not greeted yet; further ones are closed at once."""
WORKER = "worker"

logger = logging.getLogger("psfleet.ps")

Serve = Callable[[Greeting, Connection, Connection], None]
"""Serves a session until one of its connections ends: with its greeting, the connection of pushes, and of replies."""
Refusal = Callable[[Greeting], str]
"""Why a session is refused; empty: it is not."""


class ExchangeServer:
    """Listens for workers; see `exchanging`.

    Args of the constructor:
        listener: Of the port.
        identity: With one, connections are encrypted; None: they are plain.
    """

    def __init__(self, listener: socket.socket, identity: Identity | None, refusal: Refusal, serve: Serve) -> None:
        self._listener = listener
        self._identity = identity
        self._refusal = refusal
        self._serve = serve
        self._lock = threading.Lock()
        self._num_greetings = 0
        self._waiting: dict[str, tuple[Greeting, Connection]] = {}

    def accept_all(self) -> None:
        """Accepts connections until the listener is closed."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                is_full = self._num_greetings >= MAX_GREETINGS
                self._num_greetings += not is_full
            if is_full:
                sock.close()
            else:
                threading.Thread(target=self._greeted, args=(sock,), name="exchange", daemon=True).start()

    def _greeted(self, sock: socket.socket) -> None:
        """Receives the greeting on a connection; the thread of the one with pushes serves the session."""
        try:
            try:
                session = self._session(sock)
            finally:
                with self._lock:
                    self._num_greetings -= 1
            if session is None:
                return
            greeting, pushes, replies = session
            try:
                self._serve(greeting, pushes, replies)
            finally:
                pushes.close()
                replies.close()
        except OSError as error:
            logger.debug("a connection has ended: %s", error)

    def _session(self, sock: socket.socket) -> tuple[Greeting, Connection, Connection] | None:
        """Both connections of a session, for the thread of its pushes; None: this one waits for that, or is refused.

        Raises:
            OSError: The connection is lost, or the other end is no worker.
        """
        connection = Connection(self._encrypted(sock))
        try:
            return self._session_of(connection)
        except OSError:
            connection.close()
            raise

    def _session_of(self, connection: Connection) -> tuple[Greeting, Connection, Connection] | None:
        greeting = receive_text(connection, Greeting)
        refusal = self._refusal(greeting)
        if greeting.version != psfleet.__version__:
            refusal = f"the worker has psfleet {greeting.version}, expected {psfleet.__version__}"
        if refusal:
            send_text(connection, Answer(refusal=refusal))
            connection.close()
            return None
        if greeting.carries == "replies":
            self._keep(greeting, connection)
            send_text(connection, Answer())
            return None
        with self._lock:
            first = self._waiting.pop(greeting.session, None)
        if first is None or first[0].model_copy(update={"carries": "pushes"}) != greeting:
            raise ConnectionError("a connection of pushes has no connection of replies")
        send_text(connection, Answer())
        return greeting, connection, first[1]

    def _encrypted(self, sock: socket.socket) -> socket.socket:
        """The socket with its timeout, and with TLS; closed in case of an error."""
        try:
            sock.settimeout(GREETING_SECS)
            if self._identity is not None:
                sock = server_context(self._identity).wrap_socket(sock, server_side=True)
                require_role(sock, (WORKER,))
        except OSError:
            sock.close()
            raise
        return sock

    def _keep(self, greeting: Greeting, connection: Connection) -> None:
        """Keeps a connection of replies until that of the pushes comes; not for longer than a greeting may take."""

        def drop() -> None:
            with self._lock:
                kept = self._waiting.get(greeting.session)
                if kept is None or kept[1] is not connection:
                    return
                del self._waiting[greeting.session]
            connection.close()

        with self._lock:
            if greeting.session in self._waiting:
                raise ConnectionError("a session has two connections of replies")
            self._waiting[greeting.session] = greeting, connection
        timer = threading.Timer(GREETING_SECS, drop)
        timer.daemon = True
        timer.start()


@contextmanager
def exchanging(address: Address, identity: Identity | None, refusal: Refusal, serve: Serve) -> Iterator[int]:
    """Context manager in which a ps accepts connections; gives the port.

    It listens on loopback alone if that is the address of the ps, as TensorFlow's server does, at a free port.

    Args:
        refusal, serve: Called on threads of their own.

    Raises:
        LostPeerError: The port is in use.
    """
    try:
        listener = _listener(address)
    except OSError as error:
        text = f"port {address.exchange_port} of {address.host} for exchanges is in use, expected a free one"
        raise LostPeerError(text) from error
    with listener:
        server = ExchangeServer(listener, identity, refusal, serve)
        threading.Thread(target=server.accept_all, name="exchanges", daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            # Closing alone would not end `accept`.
            listener.shutdown(socket.SHUT_RDWR)


def _listener(address: Address) -> socket.socket:
    if loopback := address.loopback_host:
        return socket.create_server((loopback, 0), backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", address.exchange_port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
        )
    return socket.create_server(("", address.exchange_port), backlog=128)
