"""TLS of the connections between workers and ps: both ends have a certificate with a role, by the fleet's authority."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from psfleet.errors import DeadlineError
from psfleet.exchange.low_water import LowWater
from psfleet.polling import wait_until

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

CHUNK_BYTES = 1 << 18
"""Encrypted, or received, at once."""
MAX_RECORD_BYTES = (1 << 14) + 256
"""Encrypted, without its header (RFC 8446, section 5.2); at most 2^14 of them are content."""
CLOSED = "the other end has closed the connection"

logger = logging.getLogger("psfleet")


def server_context(identity: Identity) -> ssl.SSLContext:
    """For accepting connections of peers with a certificate; `require_role` says which."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _with_certificate(context, identity)


def client_context(identity: Identity) -> ssl.SSLContext:
    """For connections to a peer with a role, which is to be given as its host name."""
    return _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), identity)


class EncryptedSocket:
    """A socket with TLS, of which a call of the system carries many records of 16 KiB; with `ssl.SSLSocket` it is one.

    That saves a quarter of the CPU time of large messages. One thread at a time may use it.

    Args of the constructor:
        sock: Connected, with a timeout.
        context: Of this end.
        role: The peer's, as a client; None: this end is the server.

    Raises (from all methods that send or receive, and the constructor):
        OSError: As a socket; `ssl.SSLError`: The other end does not speak TLS, or has no valid certificate.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, role: str | None = None) -> None:
        self.socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, role is None, role)
        self._received = memoryview(bytearray(CHUNK_BYTES))
        self._low_water = LowWater(sock)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except ssl.SSLError:
                # The alert that says why.
                self._flush()
                raise
            else:
                self._flush()
                return

    def require_role(self, roles: Collection[str]) -> None:
        """Checks the certificate of the peer.

        Raises:
            ssl.SSLError: It names none of the roles.
        """
        certificate: dict[str, Any] = self._tls.getpeercert() or {}
        names = [str(name) for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if not set(names) & set(roles):
            raise ssl.SSLError(f"the peer has a certificate for {', '.join(names)}, expected {' or '.join(roles)}")

    def sendall(self, content: memoryview) -> None:
        """Sends all bytes."""
        at = 0
        while at < len(content):
            end = min(at + CHUNK_BYTES, len(content))
            while at < end:
                at += self._tls.write(content[at:end])
            self._flush()

    def recvall_into(self, target: memoryview) -> None:
        """Fills `target`."""
        while len(target):
            try:
                # With a buffer it returns a number, which typeshed does not know.
                count = int(self._tls.read(len(target), target))
            except ssl.SSLWantReadError:
                self._receive(len(target))
                continue
            except ssl.SSLZeroReturnError:
                count = 0
            if not count:
                raise ConnectionResetError(CLOSED)
            target = target[count:]

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.socket.sendall(self._outgoing.read())

    def _receive(self, num_left: int = 0) -> None:
        """Receives a part of the records that have `num_left` bytes, of the first of which OpenSSL can have a part."""
        awaited = min(max(0, num_left - MAX_RECORD_BYTES), 2 * CHUNK_BYTES)
        count = self._low_water.receive(awaited, [self._received])
        if not count:
            raise ConnectionResetError(CLOSED)
        self._incoming.write(self._received[:count])


def _with_certificate(context: ssl.SSLContext, identity: Identity) -> ssl.SSLContext:
    """Adds authority, certificate and key; the latter two from their files, which may be replaced one by one."""
    from psfleet.tls.identity import CERTIFICATE, KEY, SETTLE_SECS

    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity.current().authority.decode())

    def is_loaded() -> bool:
        try:
            context.load_cert_chain(identity.folder / CERTIFICATE, identity.folder / KEY)
        except OSError as error:
            logger.debug("TLS: %s: %s", identity.folder, error)
            return False
        return True

    try:
        wait_until(is_loaded, SETTLE_SECS, f"a certificate with its key in {identity.folder}", poll_secs=0.05)
    except DeadlineError as error:
        raise ssl.SSLError(str(error)) from error
    return context
