"""The sessions of clients on a process of a fleet: who is admitted, and what happens when a client ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from psfleet.addresses import Address
from psfleet.control import clients
from psfleet.control.attendance import Attendance, FleetTask, SecuredClient
from psfleet.control.clients import ClientServicer
from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError
from psfleet.job.fleet_access import FleetAccess
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.service import channel_options
from psfleet.tls import certificates
from psfleet.tls.identity import Identity

SECS = 20.0
"""Far more than anything here takes."""
FLEET = "lab-1"
TIMES = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms",
         "grpc.http2.min_ping_interval_without_data_ms"}  # fmt: skip
JOBS = ["client_0000000000000001", "client_0000000000000002"]


@dataclass
class Served:
    """A process of a fleet, and the jobs whose sessions it has dropped."""

    task: FleetTask
    servicer: ClientServicer
    dropped: list[str] = field(default_factory=list)

    def attend(self, job: str, fleet: str = FLEET, client: SecuredClient | None = None) -> Attendance:
        """Registers a session."""
        return Attendance(fleet, [self.task], job, client)


@pytest.fixture
def served() -> Iterator[Served]:
    address = free_addresses(1)[0]
    access = FleetAccess(name="lab", id=FLEET, version=clients.psfleet.__version__, ps=[address.data])
    dropped: list[str] = []
    servicer = ClientServicer(access, dropped.append)
    with serving(address, clients=servicer):
        yield Served(FleetTask("ps", 0, address), servicer, dropped)


def test_a_session_is_dropped_when_its_client_ends_and_others_stay(served: Served) -> None:
    first, second = (served.attend(job) for job in JOBS)
    first.await_tasks(SECS)
    second.await_tasks(SECS)
    assert (served.servicer.num_sessions, served.dropped) == (2, [])
    first.close()
    wait_until(lambda: served.dropped, SECS, "the session to be dropped", done=lambda seen: seen == JOBS[:1])
    assert served.servicer.num_sessions == 1
    assert second.lost() == []
    second.close()


@pytest.mark.parametrize(
    ("job", "fleet", "message"),
    [
        ("worker_0123456789abcdef", FLEET, r"client's job is 'worker_0123456789abcdef', expected one of a client"),
        (JOBS[0], "lab-2", r"^ps 0 at .*: client knows fleet 'lab-2', expected 'lab-1': it was started again"),
    ],
)
def test_no_other_session_is_registered_or_dropped(served: Served, job: str, fleet: str, message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        served.attend(job, fleet).await_tasks(SECS)
    assert (served.servicer.num_sessions, served.dropped) == (0, [])


def test_a_client_of_another_version_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    attends = served.attend(JOBS[0])
    attends.await_tasks(SECS)
    monkeypatch.setattr(clients.psfleet, "__version__", "0.0.1")
    refused = served.servicer._problem(clients.pb.AttendRequest(fleet=FLEET, version="0.1.0", job=JOBS[0]))
    assert refused == "client has psfleet 0.1.0, expected 0.0.1"
    attends.close()


def test_more_sessions_than_the_limit_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_SESSIONS", 1)
    first = served.attend(JOBS[0])
    first.await_tasks(SECS)
    with pytest.raises(LostPeerError, match="1 sessions of clients are open, expected fewer"):
        served.attend(JOBS[1]).await_tasks(SECS)
    assert served.dropped == []
    first.close()


def test_the_end_of_a_process_is_noticed_by_its_clients() -> None:
    address = free_addresses(1)[0]
    access = FleetAccess(name="lab", id=FLEET, version=clients.psfleet.__version__, ps=[address.data])
    ended = threading.Event()
    with serving(address, clients=ClientServicer(access, lambda job: ended.set())):
        attends = Attendance(FLEET, [FleetTask("ps", 0, Address.parse(address.data))], JOBS[0])
        attends.await_tasks(SECS)
    assert attends.lost(SECS) == ["ps 0"]
    assert ended.wait(SECS)
    attends.close()


def test_a_peer_that_is_frozen_or_cut_off_is_noticed_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection breaks: a machine that loses its power or its network says nothing."""
    short = [(name, 300 if name in TIMES else value) for name, value in channel_options.ATTENDANCE]
    monkeypatch.setattr(channel_options, "ATTENDANCE", tuple(short))
    address, way = free_addresses(2)
    access = FleetAccess(name="lab", id=FLEET, version=clients.psfleet.__version__, ps=[address.data])
    dropped = threading.Event()
    with (
        serving(address, clients=ClientServicer(access, lambda job: dropped.set())),
        passing(way.control_port, address.control_port) as cut,
    ):
        attends = Attendance(FLEET, [FleetTask("ps", 0, way)], JOBS[0])
        attends.await_tasks(SECS)
        assert attends.lost(1.0) == [], "pings are answered"
        assert not dropped.is_set()
        cut.set()
        assert attends.lost(SECS) == ["ps 0"]
        assert dropped.wait(SECS)
        attends.close()


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_with_tls_only_clients_are_admitted(tmp_path: Path, role: str) -> None:
    """A process of a run must not have sessions dropped."""
    certificates.make(tmp_path)
    [address] = free_addresses(1)
    access = FleetAccess(name="lab", id=FLEET, version=clients.psfleet.__version__, ps=[address.data])
    servicer, own = ClientServicer(access, lambda job: None), Address("box-3", 2222)
    with serving(address, identity=Identity(tmp_path / "ps"), clients=servicer):
        for each, is_admitted in ((role, False), ("client", True)):
            client = SecuredClient(Identity(tmp_path / each), 3, own)
            attends = Attendance(FLEET, [FleetTask("ps", 0, address)], JOBS[0], client)
            if is_admitted:
                attends.await_tasks(SECS)
            else:
                with pytest.raises(LostPeerError, match=f"a certificate for {role} may not call Attend"):
                    attends.await_tasks(SECS)
            attends.close()


@contextmanager
def passing(port: int, target: int) -> Iterator[threading.Event]:
    """Passes connections on from one port of loopback to another, until the event is set: then it holds all bytes."""
    cut, listener = threading.Event(), socket.create_server(("127.0.0.1", port))
    ends: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if cut.is_set():
                    return
                sink.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                pair = listener.accept()[0], socket.create_connection(("127.0.0.1", target))
                ends.extend(pair)
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield cut
    finally:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_client_with_tls_is_reachable_during_its_sessions_only(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is refused, here because there are too many, opens no tunnel."""
    reached: list[tuple[int, str]] = []

    @contextmanager
    def meet(index: int, address: str) -> Iterator[None]:
        if not address:
            raise BadJobError("address '': expected host:port")
        reached.append((index, address))
        yield
        assert served.dropped, "TensorFlow drops the session while it can reach the client"
        reached.remove((index, address))

    served.servicer._meet = meet
    monkeypatch.setattr(clients, "MAX_SESSIONS", 1)
    with pytest.raises(BadJobError, match=r"ps 0 at .*: address '': expected host:port"):
        served.attend(JOBS[0]).await_tasks(SECS)
    assert served.servicer.num_sessions == 0
    first = served.attend(JOBS[0], client=client_of(0))
    first.await_tasks(SECS)
    with pytest.raises(LostPeerError, match="1 sessions of clients are open, expected fewer"):
        served.attend(JOBS[1], client=client_of(1)).await_tasks(SECS)
    assert reached == [(0, "box-0:2222")]
    first.close()
    wait_until(lambda: reached, SECS, "the client not to be reachable", done=lambda seen: not seen)
    assert served.dropped == JOBS[:1]


def client_of(index: int) -> SecuredClient:
    """A client at an address of its own; the tunnels of this test need no credentials."""
    return SecuredClient(None, index, Address(f"box-{index}", 2222))  # type: ignore[arg-type]
