"""Finds the host name or IP address at which the other machines of a fleet reach this one."""

from __future__ import annotations

from collections.abc import Sequence

from psfleet.errors import LostPeerError
from psfleet.service.host_routes import route_to


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
            route = route_to(host)
        except OSError as error:
            problem = problem or f"{host}: {error.strerror or error}"
            continue
        if route.ends_here:
            return host
        first = first or route.source
    if not first:
        raise LostPeerError(f"no route to a ps ({problem}), expected one, or --address")
    return f"[{first}]" if ":" in first else first
