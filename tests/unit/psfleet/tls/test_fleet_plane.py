"""The tunnels of a standing fleet with TLS: which each process opens, and to whom. No tunnel is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.addresses import LOCAL_PORTS, Address
from psfleet.errors import BadJobError
from psfleet.job.fleet_access import FleetAccess
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import Direct
from psfleet.tls.fleet_plane import FleetTunnels, lasting_plane
from psfleet.tls.tunnel import Route

ACCESS = FleetAccess(name="lab", id="lab-1", version="1", ps=["ps-0:2222", "ps-1:2222"], workers=["worker-0:2222"])
PS_0, PS_1, WORKER_0, CLIENT_3 = (20000, 20001, 21000, 31003)


class Opened:
    """Notes the routes instead of starting tunnels."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def open(self, route: Route) -> None:
        self.routes.append(route)


def settings(index: int, address: str) -> Settings:
    return Settings(None, Path(), "", index, (), Address.parse(address), Path(), 0, "", fleet=ACCESS)


def opened(role: str, index: int, address: str) -> tuple[FleetTunnels, list[Route]]:
    tunnels = Opened()
    return FleetTunnels(settings(index, address), ACCESS, role, tunnels), tunnels.routes  # type: ignore[arg-type]


def test_a_ps_takes_connections_of_all_roles_and_reaches_all_others() -> None:
    plane, (accepted, *dialled) = opened("ps", 0, "ps-0:2222")
    assert plane.own == Address("127.0.0.1", PS_0)
    assert accepted.accept.endswith(":2225")
    assert (accepted.connect, accepted.dials) == (f"127.0.0.1:{PS_0}", False)
    assert {accepted.peer, *accepted.other_peers} == {"ps", "worker", "client"}
    assert dialled == [
        Route(f"127.0.0.1:{PS_1}", "ps-1:2225", "ps", dials=True),
        Route(f"127.0.0.1:{WORKER_0}", "worker-0:2225", "worker", dials=True),
    ]


def test_a_client_takes_connections_of_the_fleet_only() -> None:
    plane, (accepted, *dialled) = opened("client", 3, "box-3:2222")
    assert plane.own == Address("127.0.0.1", CLIENT_3)
    assert {accepted.peer, *accepted.other_peers} == {"ps", "worker"}
    assert [route.accept for route in dialled] == [f"127.0.0.1:{port}" for port in (PS_0, PS_1, WORKER_0)]
    assert [route.peer for route in dialled] == ["ps", "ps", "worker"]


def test_a_process_reaches_a_client_that_registers() -> None:
    plane, routes = opened("worker", 0, "worker-0:2222")
    plane.meet_client(3, "box-3:2222")
    assert routes[-1] == Route(f"127.0.0.1:{CLIENT_3}", "box-3:2225", "client", dials=True)
    with pytest.raises(BadJobError, match=r"address '': expected host:port"):
        plane.meet_client(3, "")
    with pytest.raises(BadJobError, match="client -1: with tls, expected an index from 0 to"):
        plane.meet_client(-1, "box-3:2222")


def test_workers_of_runs_are_refused() -> None:
    plane, _ = opened("ps", 0, "ps-0:2222")
    with pytest.raises(BadJobError, match="expected a fleet without tls, one with it serves no runs"):
        plane.meet(0, "chief:2222")


def test_ports_of_roles_are_apart() -> None:
    ports = [port for each in LOCAL_PORTS.values() for port in each]
    assert len(ports) == len(set(ports))
    assert max(ports) < 32768


def test_without_tls_a_plane_that_lasts_is_the_process_itself() -> None:
    assert lasting_plane(settings(3, "box-3:2222"), "client", None) == Direct(Address("box-3", 2222), ())
