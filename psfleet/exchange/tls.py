"""TLS of the connections between workers and ps: both ends have a certificate with a role, by the fleet's authority."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from psfleet.errors import DeadlineError
from psfleet.polling import wait_until

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Files in the folder of an identity; see `psfleet.tls.identity`."""
SETTLE_SECS = 2.0
"""For files that do not match while they are replaced."""

logger = logging.getLogger("psfleet")


def server_context(identity: Identity) -> ssl.SSLContext:
    """For accepting connections of peers with a certificate; `require_role` says which."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _with_certificate(context, identity)


def client_context(identity: Identity) -> ssl.SSLContext:
    """For connections to a peer with a role, which is to be given as its host name."""
    return _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), identity)


def require_role(sock: socket.socket, roles: Collection[str]) -> None:
    """Checks the certificate of a peer.

    Raises:
        ssl.SSLError: It names none of the roles.
    """
    certificate: dict[str, Any] = (sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None) or {}
    names = [str(name) for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
    if not set(names) & set(roles):
        raise ssl.SSLError(f"the peer has a certificate for {', '.join(names)}, expected {' or '.join(roles)}")


def _with_certificate(context: ssl.SSLContext, identity: Identity) -> ssl.SSLContext:
    """Adds authority, certificate and key; the latter two from their files, which may be replaced one by one."""
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
