"""The tunnels of a standing fleet with TLS: which each process opens, and to which peers. No tunnel is started."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Never

import pytest

from psfleet.addresses import LOCAL_PORTS, Address, run_address
from psfleet.errors import BadJobError
from psfleet.job.fleet_access import FleetAccess
from psfleet.polling import run_within
from psfleet.service.settings import Settings
from psfleet.tls import certificates, fleet_plane
from psfleet.tls.data_plane import Direct, OnLoopback, WorkerRoute
from psfleet.tls.fleet_plane import FleetTunnels, lasting_plane, plane_of
from psfleet.tls.identity import Identity
from psfleet.tls.route import Route

ACCESS = FleetAccess(name="lab", id="lab-1", version="1", ps=["ps-0:2222", "ps-1:2222"], workers=["worker-0:2222"])
PS_0, PS_1, WORKER_0, CLIENT_3 = (20000, 20001, 21000, 31003)


class Opened:
    """Notes the routes instead of starting tunnels."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def open(self, route: Route) -> None:
        self.routes.append(route)

    def close(self, accept: str) -> None:
        self.routes = [route for route in self.routes if route.accept != accept]


def settings(index: int, address: str) -> Settings:
    return Settings(None, Path(), "", index, (), Address.parse(address), Path(), 0, "", fleet=ACCESS)


def plane_with(tunnels: Opened, role: str, index: int, address: str) -> FleetTunnels:
    return FleetTunnels(settings(index, address), ACCESS, role, tunnels)  # type: ignore[arg-type]


def opened(role: str, index: int, address: str) -> tuple[FleetTunnels, list[Route]]:
    tunnels = Opened()
    return plane_with(tunnels, role, index, address), tunnels.routes


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


def test_a_process_reaches_a_client_while_it_has_a_session() -> None:
    tunnels = Opened()
    plane = plane_with(tunnels, "worker", 0, "worker-0:2222")
    of_fleet = list(tunnels.routes)
    to_client = Route(f"127.0.0.1:{CLIENT_3}", "box-3:2225", "client", dials=True)
    with plane.meet_client(3, "box-3:2222"):
        with plane.meet_client(3, "box-3:2222"):
            assert to_client in tunnels.routes
        assert to_client in tunnels.routes, "the client's other session is open"
    assert tunnels.routes == of_fleet
    with plane.meet_client(3, "box-4:2222"):
        assert tunnels.routes[-1].connect == "box-4:2225"
    assert tunnels.routes == of_fleet


@pytest.mark.parametrize(
    ("index", "address", "message"),
    [
        (3, "", r"address '': expected host:port"),
        (-1, "box-3:2222", "client -1: with tls, expected an index from 0 to"),
    ],
)
def test_a_client_that_cannot_be_reached_is_refused(index: int, address: str, message: str) -> None:
    plane, _ = opened("worker", 0, "worker-0:2222")
    with pytest.raises(BadJobError, match=message), plane.meet_client(index, address):
        pass


def test_a_ps_reaches_the_workers_of_each_run_until_the_run_is_over() -> None:
    tunnels = Opened()
    plane = plane_with(tunnels, "ps", 0, "ps-0:2222")
    of_fleet = list(tunnels.routes)
    plane.meet("one", 0, "chief-of-one:2222")
    route = plane.meet("one", 1, "c0ffee:2222")
    assert route == WorkerRoute(run_address("one", 1), entry=Address("c0ffee", 2225))
    plane.meet("two", 0, "chief-of-two:2222")
    to_two = Route(run_address("two", 0).data, "chief-of-two:2225", "worker", dials=True)
    assert tunnels.routes[len(of_fleet) :] == [
        Route(run_address("one", 0).data, "chief-of-one:2225", "worker", dials=True),
        Route(run_address("one", 1).data, "c0ffee:2225", "worker", dials=True),
        to_two,
    ]
    plane.release("one")
    plane.release("one")
    assert tunnels.routes == [*of_fleet, to_two]
    with pytest.raises(BadJobError, match="address 'nowhere': expected host:port"):
        plane.meet("two", 0, "nowhere")


def test_processes_of_one_machine_need_no_tunnel(tmp_path: Path) -> None:
    certificates.make(tmp_path / "certs")
    own = settings(0, "127.0.0.1:2222")
    with plane_of(own, "ps", Identity(tmp_path / "certs" / "ps")) as plane:
        assert plane == OnLoopback(own.address, ())


def test_ports_of_roles_are_apart() -> None:
    ports = [port for each in LOCAL_PORTS.values() for port in each]
    assert len(ports) == len(set(ports))
    assert max(ports) < 32768


def test_without_tls_a_plane_that_lasts_is_the_process_itself() -> None:
    assert lasting_plane(settings(3, "box-3:2222"), "client", None) == Direct(Address("box-3", 2222), ())


def test_a_plane_that_cannot_be_opened_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example because the disk, to which the tunnels' configuration is written, is full."""

    def full(*_: object) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fleet_plane, "plane_of", full)
    with pytest.raises(OSError, match="No space left on device"):
        run_within(10.0, lambda: lasting_plane(settings(3, "box-3:2222"), "client", None))
