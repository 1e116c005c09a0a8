"""The route of one tunnel, and stunnel's configuration for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psfleet.tls.identity import AUTHORITY, CERTIFICATE, KEY


@dataclass(frozen=True)
class Route:
    """Configuration of one stunnel process.

    Attributes:
        accept: `host:port` on which it listens.
        connect: `host:port` to which it connects; a name is resolved for each connection.
        peer: The role that the peer's certificate must name.
        dials: Whether it is the TLS client, which connects to a peer, rather than the server.
        other_peers: Further roles, one of which the certificate may name instead.
    """

    accept: str
    connect: str
    peer: str
    dials: bool
    other_peers: tuple[str, ...] = ()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.accept.rpartition(":")[2])


def configuration(route: Route, folder: Path) -> str:
    """The content of the configuration file, see stunnel(8)."""
    host, _, port = route.connect.rpartition(":")
    lines = [
        "foreground = yes",
        "pid =",
        "syslog = no",
        "debug = warning",
        # Small messages are sent at once; the keepalive of the gRPC channel detects a vanished host.
        "socket = l:TCP_NODELAY=1",
        "socket = r:TCP_NODELAY=1",
        "[psfleet]",
        f"client = {'yes' if route.dials else 'no'}",
        f"accept = {route.accept}",
        f"connect = {host.strip('[]')}:{port}",
        # The name is resolved for each connection: a restarted peer may have another address.
        "delay = yes",
        "TIMEOUTconnect = 5",
        "TIMEOUTclose = 0",
        f"cert = {folder / CERTIFICATE}",
        f"key = {folder / KEY}",
        f"CAfile = {folder / AUTHORITY}",
        "verifyChain = yes",
        *(f"checkHost = {peer}" for peer in (route.peer, *route.other_peers)),
        "sslVersionMin = TLSv1.3",
        # The fastest on processors with AES instructions.
        "ciphersuites = TLS_AES_128_GCM_SHA256",
    ]
    return "\n".join(lines) + "\n"
