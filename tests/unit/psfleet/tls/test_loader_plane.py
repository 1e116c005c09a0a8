"""The ports of a loader: on loopback, or behind tunnels that admit workers only."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

import pytest
from support.opened_tunnels import OpenedTunnels

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError
from psfleet.processes.own_host import own_host
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from psfleet.tls import certificates, tunnel
from psfleet.tls.data_plane import Tunnelled
from psfleet.tls.identity import Identity
from psfleet.tls.loader_plane import LoaderPlane, loader_plane
from psfleet.tls.tunnel import Tunnels
from worker_service.loader.service import LoaderServicer, data_service

ELSEWHERE = "198.51.100.1"
"""An address for documentation (RFC 5737), to which nothing is sent."""


def read(role: str, index: int) -> settings.Settings:
    environment = {
        settings.PS: "ps-0:2222",
        settings.LOADERS: "loader-0:2222,loader-1:2222",
        settings.ADDRESS: f"{role}-{index}:2222",
        settings.INDEX: str(index),
        settings.RUN: "digits",
    }
    return settings.read(environment)


def test_the_tunnels_of_a_worker_lead_to_both_ports_of_each_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenedTunnels()
    plane = Tunnelled(read("worker", 1), "worker", 1, cast(Tunnels, opened))
    assert not [route for route in opened.routes if "loader" in route.connect], "it has met none"
    for index in (0, 1, 1):
        plane.meet_loader(index)
    dialled = {route.connect: (route.accept, route.peer) for route in opened.routes if "loader" in route.connect}
    own = OpenedTunnels()
    monkeypatch.setattr(tunnel, "Tunnels", lambda identity: own)
    for index in (0, 1):
        own.routes.clear()
        with loader_plane(read("loader", index), cast(Any, object())) as ports:
            assert plane.loaders[index] == ports.dispatcher
            assert ports.requires_closed
        accepted = [(route.accept.rpartition(":")[2], route.connect, route.peer, route.dials) for route in own.routes]
        assert accepted == [
            ("2225", ports.dispatcher.data, "worker", False),
            ("2229", ports.batches.data, "worker", False),
        ]
        for port, inner, _, _ in accepted:
            assert dialled.pop(f"loader-{index}:{port}") == (inner, "loader")
    assert not dialled


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 2.0):
            return True
    except OSError:
        return False


def other_address() -> str:
    """Another address of this machine than 127.0.0.1, at which a port that is bound to all interfaces answers."""
    try:
        return own_host([ELSEWHERE])
    except LostPeerError:
        return "127.0.0.5"


def test_without_tls_a_process_answers_on_loopback_only() -> None:
    (address,) = free_addresses(1)
    with loader_plane(settings.read({settings.ADDRESS: address.data}), None) as plane:
        servers: Any = data_service(plane)
    ports = (address.port, int(servers[1]._address.rpartition(":")[2]))
    found = {(host, port): answers(host, port) for host in ("127.0.0.1", other_address()) for port in ports}
    assert list(found.values()) == [True, True, False, False], found


def test_in_a_container_a_port_that_must_be_closed_and_is_open_ends_the_loader() -> None:
    (address,) = free_addresses(1)
    (batches,) = free_addresses(1)
    open_to_all = LoaderPlane(Address("loader-0", address.port), Address("loader-0", batches.port), True)
    with pytest.raises(BadJobError, match="expected loopback only"):
        data_service(open_to_all)


@pytest.mark.parametrize(
    ("role", "describes", "ends"), [("worker", True, True), ("client", True, False), ("loader", False, False)]
)
def test_with_tls_a_run_is_ended_by_workers_alone(tmp_path: Path, role: str, describes: bool, ends: bool) -> None:
    certificates.make(tmp_path / "certs")
    (address,) = free_addresses(1)
    servicer = LoaderServicer("digits")
    with serving(address, servicer, Identity(tmp_path / "certs" / "loader"), watchers=servicer.watchers):
        client = PsClient(address, "digits", Identity(tmp_path / "certs" / role), "loader")
        try:
            for call, is_admitted in ((client.describe, describes), (lambda: client.finish(pb.Outcome()), ends)):
                if is_admitted:
                    assert call().run == "digits"
                else:
                    with pytest.raises(BadJobError, match=f"a certificate for {role} may not call"):
                        call()
        finally:
            client.close()
    assert servicer.finished.is_set() == ends
