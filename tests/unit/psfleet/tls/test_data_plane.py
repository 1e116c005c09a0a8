"""The tunnels of a process: to every peer that is not on its own host."""

from __future__ import annotations

from typing import cast

import pytest
from support.opened_tunnels import OpenedTunnels
from support.program_samples import sample_job

from psfleet.addresses import Address, run_address
from psfleet.job.fleet import Fleet
from psfleet.job.update import Update
from psfleet.service import settings
from psfleet.tls import data_plane
from psfleet.tls.data_plane import Tunnelled, WorkerRoute
from psfleet.tls.tunnel import Tunnels


def tunnelled(role: str, index: int, address: str, opened: OpenedTunnels, job: str = "") -> Tunnelled:
    read = settings.read({settings.PS: "a:2222,b:2222", settings.ADDRESS: address, settings.JOB: job})
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
    on_host, away = run_address("digits", 0), run_address("digits", 1)
    assert plane.meet("digits", 0, "a:2300") == WorkerRoute(on_host, entry=on_host)
    assert plane.meet("digits", 1, "b:2304") == WorkerRoute(away, entry=Address("b", 2307))
    assert opened.dialled() == [(away.data, "b:2307")]


@pytest.mark.parametrize("own", ["a:2222", "127.0.0.1:2222"])
def test_a_host_can_have_several_names(own: str) -> None:
    """TensorFlow of the worker could not listen where the tunnel of its ps does."""
    opened = OpenedTunnels()
    plane = tunnelled("ps", 0, own, opened)
    on_host = run_address("digits", 0)
    for _ in range(2):
        assert plane.meet("digits", 0, "127.0.1.1:2300") == WorkerRoute(on_host, entry=on_host)
    assert opened.dialled() == []


@pytest.mark.parametrize("found", [True, False], ids=["here", "elsewhere"])
def test_a_host_whose_name_is_not_known_at_first_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    answers = iter([None, found])
    monkeypatch.setattr(data_plane, "is_here", lambda host: next(answers))
    plane = tunnelled("ps", 0, "a:2222", OpenedTunnels())
    local = run_address("digits", 0)
    routes = [plane.meet("digits", 0, "b:2300") for _ in range(3)]
    elsewhere = WorkerRoute(local, entry=Address("b", 2303))
    assert routes == [elsewhere, WorkerRoute(local, entry=local) if found else elsewhere, routes[1]]


def test_a_worker_needs_no_tunnel_to_the_ps_of_its_host_by_another_name() -> None:
    read = settings.read({settings.PS: "127.0.1.1:2222,b:2222", settings.ADDRESS: "c:2300"})
    opened = OpenedTunnels()
    Tunnelled(read, "worker", 1, cast(Tunnels, opened))
    assert opened.dialled() == [("127.0.0.1:20001", "b:2225")]


@pytest.mark.parametrize(
    ("replication", "parts", "expected"),
    [("between_graph", 1, ("ps",)), ("in_graph", 1, ("ps", "worker")), ("between_graph", 2, ("ps", "worker"))],
)
def test_workers_take_connections_of_each_other_only_if_they_lend_devices(
    replication: str, parts: int, expected: tuple[str, ...]
) -> None:
    changes = {"update": Update(replication=replication), "fleet": Fleet(workers=2, parts=parts)}
    job = sample_job().model_copy(update=changes).model_dump_json()
    for index in (0, 1):
        opened = OpenedTunnels()
        tunnelled("worker", index, "c:2300", opened, job)
        assert opened.callers() == expected
    opened = OpenedTunnels()
    tunnelled("ps", 0, "a:2222", opened, job)
    assert opened.callers() == ("worker",)


def test_a_worker_that_is_a_ps_reaches_the_others_at_the_ports_of_ps_by_one_tunnel_each() -> None:
    job = sample_job().model_copy(update={"fleet": Fleet(ps=2, workers=2, colocate=True)}).model_dump_json()
    opened = OpenedTunnels()
    plane = tunnelled("worker", 1, "b:2222", opened, job)
    assert plane.own == plane.ps[1] == Address("127.0.0.1", 20001)
    assert opened.callers() == ("worker",)
    assert opened.dialled() == [("127.0.0.1:20000", "a:2225")]
    assert plane.meet("digits", 0, "a:2222") == WorkerRoute(plane.ps[0], entry=Address("a", 2225))
    assert len(opened.dialled()) == 1, "its TensorFlow is that of its ps"
