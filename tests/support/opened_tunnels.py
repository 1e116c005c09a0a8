"""The tunnels of a process under test, which are not opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from psfleet.tls.route import Route


@dataclass
class OpenedTunnels:
    """Stub for `Tunnels`: records the routes."""

    routes: list[Route] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def open(self, route: Route) -> None:
        """Records a route; see `Tunnels`."""
        self.routes.append(route)

    def callers(self) -> tuple[str, ...]:
        """The roles that the incoming tunnel takes connections of."""
        [accepting] = [route for route in self.routes if not route.dials]
        return (accepting.peer, *accepting.other_peers)

    def dialled(self) -> list[tuple[str, str]]:
        """From where to where the outgoing tunnels lead."""
        return [(route.accept, route.connect) for route in self.routes if route.dials]
