"""Accepts the connections of workers at a ps, and gives each pair of them to a handler."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import psfleet
from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import Connection
from psfleet.exchange.halves import Halves
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.tls import EncryptedSocket, server_context

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

GREETING_SECS = 10.0
"""For the greeting on a new connection, and for the second connection of a session."""
MAX_GREETINGS = 64
"""Connections that have not greeted yet; further ones wait to be accepted. Each has two threads."""
RETRY_SECS = 0.2
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
        self._greetings = threading.Semaphore(MAX_GREETINGS)
        self._halves = Halves(GREETING_SECS)
        self._is_over = threading.Event()

    def accept_all(self) -> None:
        """Accepts connections until it is closed."""
        while not self._is_over.is_set():
            if not self._greetings.acquire(timeout=RETRY_SECS):
                continue
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                # For example because this process has too many files open.
                logger.debug("no connection is accepted: %s", error)
                self._greetings.release()
                self._is_over.wait(RETRY_SECS)
                continue
            try:
                self._greet(sock)
            except RuntimeError as error:
                logger.warning("a connection is not accepted: %s", error)
                sock.close()
                self._greetings.release()
                self._is_over.wait(RETRY_SECS)

    def _greet(self, sock: socket.socket) -> None:
        """Receives the greeting on a connection, on threads of their own.

        Raises:
            RuntimeError: No thread can be started.
        """
        # Of the whole greeting: a timeout of the socket is one of each byte.
        timer = threading.Timer(GREETING_SECS, _shut_down, [sock])
        timer.daemon = True
        try:
            timer.start()
            threading.Thread(target=self._greeted, args=(sock, timer), name="exchange", daemon=True).start()
        except RuntimeError:
            timer.cancel()
            raise

    def _greeted(self, sock: socket.socket, timer: threading.Timer) -> None:
        """Receives the greeting on a connection; the thread of the one with pushes serves the session."""
        try:
            try:
                session = self._session(sock)
            finally:
                timer.cancel()
                self._greetings.release()
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
        connection = self._connection(sock)
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
            self._halves.keep(greeting, connection)
            send_text(connection, Answer())
            return None
        replies = self._halves.take(greeting)
        try:
            send_text(connection, Answer())
        except OSError:
            replies.close()
            raise
        return greeting, connection, replies

    def _connection(self, sock: socket.socket) -> Connection:
        """A connection with the timeout of a greeting; the socket is closed in case of an error."""
        try:
            sock.settimeout(GREETING_SECS)
            encrypted = None
            if self._identity is not None:
                encrypted = EncryptedSocket(sock, server_context(self._identity))
                encrypted.require_role((WORKER,))
            return Connection(sock, encrypted)
        except OSError:
            sock.close()
            raise

    def close(self) -> None:
        """Closes the listener, and the connections that are kept."""
        self._is_over.set()
        with suppress(OSError):
            # Closing alone would not end `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._halves.close()


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
    with closing(ExchangeServer(listener, identity, refusal, serve)) as server:
        threading.Thread(target=server.accept_all, name="exchanges", daemon=True).start()
        yield listener.getsockname()[1]


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _listener(address: Address) -> socket.socket:
    if loopback := address.loopback_host:
        return socket.create_server((loopback, 0), backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", address.exchange_port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
        )
    return socket.create_server(("", address.exchange_port), backlog=128)
