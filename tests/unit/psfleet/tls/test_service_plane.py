"""The tunnels of a service: front and members reach each other by the same local addresses everywhere."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.opened_tunnels import OpenedTunnels

from psfleet.addresses import Address
from psfleet.errors import BadJobError
from psfleet.service import settings
from psfleet.tls import service_plane, tunnel
from psfleet.tls.service_plane import front_plane, member_plane

IDENTITY = cast(Any, object())
MEMBERS = ("member-0:2222", "member-1:2222")
FRONT = Address("front", 2222)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenedTunnels:
    found = OpenedTunnels()
    monkeypatch.setattr(tunnel, "Tunnels", lambda identity: found)
    return found


def read(host: str, index: int) -> settings.Settings:
    variables = {settings.ADDRESS: f"{host}:2222", settings.INDEX: str(index), settings.RUN: "digits-serve"}
    return settings.read(variables)


def test_each_reaches_the_other_where_it_listens(opened: OpenedTunnels) -> None:
    with front_plane(read("front", 0), MEMBERS, IDENTITY) as front:
        entry, *dialled = opened.routes
        assert (entry.accept.endswith(":2225"), entry.connect, entry.dials) == (True, front.own.data, False)
    for index in range(len(MEMBERS)):
        opened.routes.clear()
        with member_plane(read(f"member-{index}", index), FRONT, IDENTITY) as plane:
            accepts, dials = opened.routes
        assert (dialled[index].accept, dialled[index].connect) == (plane.own.data, f"member-{index}:2225")
        assert (accepts.accept.endswith(":2225"), accepts.connect) == (True, plane.own.data)
        assert (dials.accept, dials.connect, dials.dials) == (front.own.data, "front:2225", True)
        assert plane.front == front.own
        assert all(address.loopback_host for address in (plane.own, plane.front))
    assert {route.peer for route in (entry, *dialled, accepts, dials)} == {"worker"}


def test_without_tls_the_addresses_are_those_of_the_network(opened: OpenedTunnels) -> None:
    with front_plane(read("front", 0), (), None) as front, member_plane(read("member-1", 1), FRONT, None) as member:
        assert (front.own, member.own, member.front) == (FRONT, Address("member-1", 2222), FRONT)
        front.check()
    assert opened.routes == []


def test_a_port_that_others_reach_is_refused_with_tls(monkeypatch: pytest.MonkeyPatch, opened: OpenedTunnels) -> None:
    def refuse(port: int) -> None:
        raise BadJobError(f"port {port}")

    monkeypatch.setattr(service_plane, "check_loopback", refuse)
    with front_plane(read("front", 0), MEMBERS, IDENTITY) as front, pytest.raises(BadJobError, match="port 20000"):
        front.check()
