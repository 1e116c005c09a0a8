"""Tunnels and the data plane that uses them."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psfleet.addresses import LOCAL_PORTS, RUN_PORTS, Address, local_address, run_address
from psfleet.errors import BadJobError, LostPeerError
from psfleet.manifests.container import CONTROL_PORT, METRICS_PORT, TUNNEL_PORT
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.service.settings import Settings
from psfleet.tls import certificates
from psfleet.tls.data_plane import ANY_HOST, Direct, OnLoopback, Tunnelled, data_plane
from psfleet.tls.identity import Identity
from psfleet.tls.listeners import listeners
from psfleet.tls.route import Route
from psfleet.tls.tunnel import Tunnels


def route(connect: str, port: int | None = None) -> Route:
    own = free_addresses(1)[0].port if port is None else port
    return Route(f"127.0.0.1:{own}", connect, "worker", dials=True)


def pids(reloads: Path, port: int) -> list[int]:
    """Of every stunnel that listened on a port, the newest last."""
    lines = (reloads.parent / "pids").read_text().split("\n")[:-1]
    return [int(line.split()[1]) for line in lines if line.startswith(f"{port} ")]


def test_a_tunnel_listens_when_it_is_opened_and_not_after_the_end(reloads: Path, identity: Identity) -> None:
    way = route("worker-1:2225")
    with Tunnels(identity) as tunnels:
        tunnels.open(way)
        assert listeners(way.port) == {"0100007F"}
        [pid] = pids(reloads, way.port)
    assert not listeners(way.port)
    assert not Path(f"/proc/{pid}").exists()


def test_the_same_route_is_kept_and_another_one_replaces_it(tunnels: Tunnels, reloads: Path) -> None:
    way = route("worker-1:2225")
    tunnels.open(way)
    tunnels.open(way)
    assert len(pids(reloads, way.port)) == 1
    tunnels.open(route("other:2225", way.port))
    old, new = pids(reloads, way.port)
    assert not Path(f"/proc/{old}").exists()
    assert Path(f"/proc/{new}").exists()


def test_a_tunnel_that_is_open_is_used_while_another_one_starts(tunnels: Tunnels, reloads: Path) -> None:
    """A heartbeat of each worker asks for its tunnel."""
    way, slow = route("worker-1:2225"), route("slow:2225")
    tunnels.open(way)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(tunnels.open, slow)
        with (reloads.parent / "gate").open("w"):
            tunnels.open(way)
            assert not opened.done()
        opened.result(10.0)
        assert listeners(slow.port)


def test_a_tunnel_that_is_closed_is_not_restarted(tunnels: Tunnels, reloads: Path) -> None:
    closed, kept = route("worker-1:2225"), route("worker-2:2225")
    tunnels.open(closed)
    tunnels.open(kept)
    tunnels.close(closed.accept)
    tunnels.close("127.0.0.1:1")
    assert not listeners(closed.port)
    os.kill(pids(reloads, kept.port)[0], signal.SIGKILL)
    wait_until(lambda: len(pids(reloads, kept.port)) == 2, 10.0, "the watcher to look")
    assert len(pids(reloads, closed.port)) == 1


def test_a_tunnel_that_exits_is_restarted(tunnels: Tunnels, reloads: Path, caplog: pytest.LogCaptureFixture) -> None:
    way = route("worker-1:2225")
    tunnels.open(way)
    os.kill(pids(reloads, way.port)[0], signal.SIGKILL)
    wait_until(lambda: pids(reloads, way.port), 10.0, "a second stunnel", done=lambda found: len(found) == 2)
    assert f"stunnel for port {way.port} exited with code -9, restarting it" in caplog.text


def test_a_tunnel_is_restarted_although_the_machine_refuses_a_process_for_a_while(
    tunnels: Tunnels, reloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, refused, popen = route("worker-1:2225"), iter(range(2)), subprocess.Popen

    def busy(*words: Any, **options: Any) -> Any:
        if next(refused, None) is not None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return popen(*words, **options)

    tunnels.open(way)
    monkeypatch.setattr("psfleet.tls.tunnel.subprocess.Popen", busy)
    os.kill(pids(reloads, way.port)[0], signal.SIGKILL)
    wait_until(lambda: pids(reloads, way.port), 10.0, "a second stunnel", done=lambda found: len(found) == 2)
    assert next(refused, None) is None
    refused = iter(range(1))
    with pytest.raises(LostPeerError, match=r"port \d+ cannot be started: Resource temporarily unavailable"):
        tunnels.open(route("worker-2:2225"))


def test_every_tunnel_reloads_a_renewed_certificate(tunnels: Tunnels, reloads: Path, identity: Identity) -> None:
    ways = [route("worker-1:2225"), route("worker-2:2225")]
    for way in ways:
        tunnels.open(way)
    certificates.renew(identity.folder.parent)
    expected = sorted(str(way.port) for way in ways)
    wait_until(
        lambda: sorted(reloads.read_text().split()) if reloads.exists() else [],
        10.0,
        "both tunnels to reload",
        done=lambda ports: ports == expected,
    )


def test_an_unauthorized_peer_is_logged_once_and_an_absent_peer_is_not(
    tunnels: Tunnels, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "psfleet.tunnel"):
        tunnels.open(route("worker-1:2225"))
        wait_until(lambda: caplog.text.count("Rejected"), 10.0, "the line about a stranger")
        tunnels.open(route("worker-2:2225"))
        wait_until(lambda: caplog.text.count("Rejected"), 10.0, "the other's", done=lambda count: count == 2)
    assert "-> worker-1:2225: Rejected by CERT at depth=0: CN=psfleet client" in caplog.text
    assert "refused" not in caplog.text


def test_a_tunnel_that_does_not_start_says_why(tunnels: Tunnels) -> None:
    way = route("broken:2225")
    with pytest.raises(LostPeerError, match=f"stunnel for port {way.port} exited with code 1: Line 7: cannot work"):
        tunnels.open(way)
    tunnels.open(route("worker-1:2225", way.port))


@pytest.mark.parametrize("host", ["", "a b", "a\nexec = /bin/sh\nb", "a;b", "$(x)"])
def test_an_address_can_add_nothing_to_the_configuration(tunnels: Tunnels, host: str) -> None:
    with pytest.raises(BadJobError, match=r"expected host:port"):
        tunnels.open(route(f"{host}:2225"))


def test_without_stunnel_the_message_names_the_package(
    identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BadJobError, match=r"tls: true requires stunnel4, which is not installed \(Debian packages stunnel4"
    ):
        Tunnels(identity)


class Opened:
    """Stands for `Tunnels`: keeps the routes."""

    def __init__(self) -> None:
        self.routes: list[tuple[str, str, str, bool]] = []

    def open(self, way: Route) -> None:
        self.routes.append((way.accept, way.connect, way.peer, way.dials))


def settings(address: str, run: str = "run") -> Settings:
    ps = (Address("ps-0", 2222), Address("ps-1", 2222))
    return Settings(None, Path(), run, 1, ps, Address.parse(address), Path(), 0, "", tls=Path("/tls"))


def test_a_workers_tensorflow_knows_only_loopback() -> None:
    opened = Opened()
    plane = Tunnelled(settings("w:2222"), "worker", 3, opened)  # type: ignore[arg-type]
    own = run_address("run", 3).data
    assert (plane.own.data, [at.data for at in plane.ps]) == (own, ["127.0.0.1:20000", "127.0.0.1:20001"])
    assert opened.routes == [
        (f"{ANY_HOST}:2225", own, "ps", False),
        ("127.0.0.1:20000", "ps-0:2225", "ps", True),
        ("127.0.0.1:20001", "ps-1:2225", "ps", True),
    ]


def test_a_ps_reaches_a_worker_once_it_knows_the_address() -> None:
    opened = Opened()
    plane = Tunnelled(settings("ps-1:2222"), "ps", 1, opened)  # type: ignore[arg-type]
    assert plane.own.data == "127.0.0.1:20001"
    assert opened.routes == [(f"{ANY_HOST}:2225", "127.0.0.1:20001", "worker", False)]
    plane.meet("run", 4, "c0ffee:2222")
    assert opened.routes[1:] == [(run_address("run", 4).data, "c0ffee:2225", "worker", True)]
    with pytest.raises(BadJobError, match="expected host:port"):
        plane.meet("run", 4, "nowhere")


def test_workers_of_several_runs_have_addresses_of_their_own_on_loopback() -> None:
    found = {run_address(run, worker) for run in ("one", "two") for worker in range(1000)}
    assert len(found) == 2000
    for at in found:
        host = ipaddress.ip_address(at.host)
        assert host.is_loopback
        assert host not in ipaddress.ip_network("127.0.0.0/16")
        assert at.port in RUN_PORTS
        assert at.loopback_host == at.host
    assert RUN_PORTS.stop <= 32768


def test_without_tls_addresses_are_the_fleets_own(tmp_path: Path) -> None:
    plain = settings("w:2222")
    with data_plane(plain, "worker", 3, None) as plane:
        assert (plane.own, plane.ps) == (plain.address, plain.ps)
        assert isinstance(plane, Direct)


def test_processes_of_one_machine_need_no_tunnel(identity: Identity) -> None:
    own = free_addresses(1)[0]
    with data_plane(replace(settings(own.data), ps=(own,)), "worker", 3, identity) as plane:
        assert (plane.own, plane.ps) == (own, (own,))
        assert isinstance(plane, OnLoopback)
        with pytest.raises(BadJobError, match="listens on nothing, expected loopback only"):
            plane.check()


def test_a_ps_for_any_run_is_refused_with_tls(identity: Identity) -> None:
    with (
        pytest.raises(BadJobError, match="serves one run, expected PSFLEET_RUN"),
        data_plane(settings("ps-0:2222", run=""), "ps", 0, identity),
    ):
        raise AssertionError("it must not get here")


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """On a host's port; without a host, nowhere."""
    if not host:
        yield
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family):
        yield


@pytest.mark.parametrize(("host", "refused"), [("127.0.0.1", False), ("0.0.0.0", True), ("::", True), ("", True)])
def test_a_tensorflow_port_that_is_open_to_others_ends_the_process(host: str, refused: bool) -> None:
    plane = Tunnelled(settings("w:2222"), "worker", 3, Opened())  # type: ignore[arg-type]
    [plane.own] = free_addresses(1)
    with listening(host, plane.own.port):
        if refused:
            with pytest.raises(BadJobError, match=r"TensorFlow's port \d+ listens on .*, expected loopback only"):
                plane.check()
        else:
            plane.check()


def test_no_port_of_the_tunnels_is_one_that_a_container_has_open() -> None:
    tunnels = {port for ports in (*LOCAL_PORTS.values(), RUN_PORTS) for port in ports}
    assert {2222, CONTROL_PORT, METRICS_PORT, TUNNEL_PORT}.isdisjoint(tunnels)


def test_ports_of_a_container_are_those_of_its_address() -> None:
    address = Address("ps-0", 2222)
    assert (address.control, address.tunnel) == (f"ps-0:{CONTROL_PORT}", f"ps-0:{TUNNEL_PORT}")


def test_an_index_without_a_port_is_refused() -> None:
    with pytest.raises(BadJobError, match="ps 1000: with tls, expected an index from 0 to 999"):
        local_address("ps", 1000)
