"""The route from this machine to a host, and whether the host is this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

ANY_PORT = 9
"""UDP's discard port: connecting a datagram socket sends nothing."""


@dataclass(frozen=True)
class HostRoute:
    """A route.

    Attributes:
        address: Of the host.
        source: The address from which this machine would send to it.
    """

    address: str
    source: str

    @property
    def ends_here(self) -> bool:
        """Whether the address is one of this machine. One that several machines have outside, by NAT, is not."""
        return self.source == self.address or ip_address(self.address).is_loopback


def route_to(host: str) -> HostRoute:
    """The route to a name or an IP address; an IPv6 address can be in brackets.

    Raises:
        OSError: The name is unknown, or there is no route.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return HostRoute(str(address[0]), str(probe.getsockname()[0]))


def is_here(host: str) -> bool | None:
    """Whether a name or an IP address is that of this machine; None: no route is found at present."""
    try:
        return route_to(host).ends_here
    except (OSError, UnicodeError):
        # UnicodeError: a label of more than 63 characters.
        return None
