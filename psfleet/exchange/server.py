"""Accepts the connections of workers at a ps, and gives each pair of them to a handler."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import psfleet
from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import Connection
from psfleet.exchange.halves import Halves
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.tls import EncryptedSocket, server_context
from psfleet.exchange.unix_sockets import BACKLOG, is_of_this_user, listening_beside

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
        listeners: Of the port, and of processes of this machine.
        identity: With one, connections are encrypted; None: they are plain.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], identity: Identity | None, refusal: Refusal, serve: Serve
    ) -> None:
        self._listeners = listeners
        self._identity = identity
        self._refusal = refusal
        self._serve = serve
        self._halves = Halves(GREETING_SECS)
        self._is_over = threading.Event()

    def start(self) -> None:
        """Accepts connections of each listener on a thread until it is closed."""
        for listener in self._listeners:
            threading.Thread(target=self._accept_all, args=(listener,), name="exchanges", daemon=True).start()

    def _accept_all(self, listener: socket.socket) -> None:
        # Of each listener: strangers at the port do not keep the user's own processes away.
        greetings = threading.Semaphore(MAX_GREETINGS)
        while not self._is_over.is_set():
            if not greetings.acquire(timeout=RETRY_SECS):
                continue
            try:
                sock = accepted(listener)
            except OSError as error:
                # For example because this process has too many files open.
                logger.debug("no connection is accepted: %s", error)
                self._is_over.wait(RETRY_SECS)
                sock = None
            if sock is None:
                greetings.release()
                continue
            try:
                self._greet(sock, greetings)
            except RuntimeError as error:
                logger.warning("a connection is not accepted: %s", error)
                sock.close()
                greetings.release()
                self._is_over.wait(RETRY_SECS)

    def _greet(self, sock: socket.socket, greetings: threading.Semaphore) -> None:
        """Receives the greeting on a connection, on threads of their own.

        Raises:
            RuntimeError: No thread can be started.
        """
        # Of the whole greeting: a timeout of the socket is one of each byte.
        timer = threading.Timer(GREETING_SECS, _shut_down, [sock])
        timer.daemon = True
        try:
            timer.start()
            threading.Thread(target=self._greeted, args=(sock, timer, greetings), name="exchange", daemon=True).start()
        except RuntimeError:
            timer.cancel()
            raise

    def _greeted(self, sock: socket.socket, timer: threading.Timer, greetings: threading.Semaphore) -> None:
        """Receives the greeting on a connection; the thread of the one with pushes serves the session."""
        try:
            try:
                session = self._session(sock)
            finally:
                timer.cancel()
                greetings.release()
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
        """Closes the listeners, and the connections that are kept."""
        self._is_over.set()
        for listener in self._listeners:
            # Closing alone would not end `accept`.
            _shut_down(listener)
            listener.close()
        self._halves.close()


@contextmanager
def exchanging(address: Address, identity: Identity | None, refusal: Refusal, serve: Serve) -> Iterator[int]:
    """Context manager in which a ps accepts connections; gives the port.

    It listens on loopback alone if that is the address of the ps, as TensorFlow's server does, at a free port, and
    beside that of 127.0.0.1 at a Unix socket for processes of its user.

    Args:
        refusal, serve: Called on threads of their own.

    Raises:
        LostPeerError: The port is in use.
    """
    try:
        listeners = _listeners(address)
    except OSError as error:
        text = f"port {address.exchange_port} of {address.host} for exchanges is in use, expected a free one"
        raise LostPeerError(text) from error
    with closing(ExchangeServer(listeners, identity, refusal, serve)) as server:
        server.start()
        yield _port(listeners[-1])


def accepted(listener: socket.socket) -> socket.socket | None:
    """The next connection; None: it is of a process of another user.

    Raises:
        OSError: None can be accepted.
    """
    sock, _ = listener.accept()
    if sock.family != socket.AF_UNIX or is_of_this_user(sock):
        return sock
    logger.debug("a connection of another user to the Unix socket is closed")
    sock.close()
    return None


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _listeners(address: Address) -> list[socket.socket]:
    """The last of them is that of the port, which is closed last: until then no other ps can have it."""
    if loopback := address.loopback_host:
        tcp = socket.create_server((loopback, 0), backlog=BACKLOG)
        unix = listening_beside(_port(tcp)) if address.is_loopback else None
        return [tcp] if unix is None else [unix, tcp]
    at = "", address.exchange_port
    if socket.has_dualstack_ipv6():
        return [socket.create_server(at, family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)]
    return [socket.create_server(at, backlog=BACKLOG)]


def _port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])
