"""The tunnels of a process: to every peer that is not on its own host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from psfleet.addresses import run_address
from psfleet.service import settings
from psfleet.tls.data_plane import Tunnelled
from psfleet.tls.route import Route
from psfleet.tls.tunnel import Tunnels


@dataclass
class OpenedTunnels:
    """Stub for `Tunnels`: records the routes."""

    routes: list[Route] = field(default_factory=list)

    def open(self, route: Route) -> None:
        self.routes.append(route)

    def dialled(self) -> list[tuple[str, str]]:
        """From where to where the outgoing tunnels lead."""
        return [(route.accept, route.connect) for route in self.routes if route.dials]


def tunnelled(role: str, index: int, address: str, opened: OpenedTunnels) -> Tunnelled:
    read = settings.read({settings.PS: "a:2222,b:2222", settings.ADDRESS: address})
    return Tunnelled(read, role, index, cast(Tunnels, opened))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("c:2300", [("127.0.0.1:20000", "a:2225"), ("127.0.0.1:20001", "b:2225")]),
        ("b:2300", [("127.0.0.1:20000", "a:2225")]),
    ],
)
def test_a_worker_needs_no_tunnel_to_the_ps_of_its_host(address: str, expected: list[tuple[str, str]]) -> None:
    """There, the port of the tunnel would be that on which the ps itself listens."""
    opened = OpenedTunnels()
    plane = tunnelled("worker", 1, address, opened)
    assert opened.dialled() == expected
    assert [at.port for at in plane.ps] == [20000, 20001]


def test_a_ps_needs_no_tunnel_to_the_worker_of_its_host() -> None:
    opened = OpenedTunnels()
    plane = tunnelled("ps", 0, "a:2222", opened)
    plane.meet("digits", 0, "a:2300")
    plane.meet("digits", 1, "b:2304")
    assert opened.dialled() == [(run_address("digits", 1).data, "b:2307")]
