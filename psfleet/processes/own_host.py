"""Finds the host name or IP address at which the other machines of a fleet reach this one."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address

from psfleet.errors import LostPeerError

ANY_PORT = 9
"""UDP's discard port: connecting a datagram socket sends nothing."""


def own_host(ps_hosts: Sequence[str]) -> str:
    """The host of the ps that runs on this machine, or else the address of this machine on the route to a ps.

    The machine's own host name need not be known to the others, and often means loopback on the machine itself.

    Args:
        ps_hosts: Hosts of the ps; an IPv6 address is in brackets.

    Raises:
        LostPeerError: There is no route to any of them.
    """
    problem, first = "", ""
    for host in ps_hosts:
        try:
            address, source = _route(host.strip("[]"))
        except OSError as error:
            problem = problem or f"{host}: {error.strerror or error}"
            continue
        if source == address or ip_address(address).is_loopback:
            return host
        first = first or source
    if not first:
        raise LostPeerError(f"no route to a ps ({problem}), expected one, or --address")
    return f"[{first}]" if ":" in first else first


def _route(host: str) -> tuple[str, str]:
    """The address of a host, and the address from which this machine would send to it."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(address[0]), str(probe.getsockname()[0])
