"""A worker opens its connections with a ps, or is told why not."""

from __future__ import annotations

import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.exchange_samples import KIND, messages, share_nothing
from support.exchange_server import GREETING, WAIT_SECS

from psfleet.addresses import LOOPBACK, Address
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Greeting
from psfleet.exchange.server import exchanging
from psfleet.polling import wait_until
from worker_service import connections as tested
from worker_service.connections import Connections
from worker_service.session_errors import UnreachableError


def connections_with_one_ps(unix_sockets: bool = True) -> Connections:
    made = Connections(GREETING, None, "ps", WAIT_SECS, unix_sockets)
    made.expect(0, messages(KIND, 1))
    return made


def serve_until_its_end(greeting: Greeting, pushes: Connection, replies: Connection) -> None:
    del greeting
    share_nothing(pushes, replies)
    pushes.receive(1)


@pytest.mark.parametrize(
    ("unix_sockets", "host", "is_unix"),
    [(True, "127.0.0.1", True), (True, "localhost", True), (True, "127.0.0.2", False), (False, "127.0.0.1", False)],
)
def test_connections_are_unix_sockets_with_a_ps_of_this_machine(unix_sockets: bool, host: str, is_unix: bool) -> None:
    address = Address(host, 1)
    connections = connections_with_one_ps(unix_sockets)
    families = []

    def serve(greeting: Greeting, *ends: Connection) -> None:
        del greeting
        share_nothing(*ends)
        families.extend(each._socket.family for each in ends)

    with exchanging(address, None, lambda _: "", serve) as port:
        connections.open([address], [port])
        wait_until(lambda: len(families) == 2, WAIT_SECS, "a session")
        connections.close()
    assert families == [socket.AF_UNIX if is_unix and sys.platform == "linux" else socket.AF_INET] * 2


@pytest.mark.parametrize("is_accepted", [True, False])
def test_closing_ends_the_opening_of_connections(is_accepted: bool) -> None:
    """A ps that accepts connections and says nothing, and one that accepts all while they are closed."""
    connections = connections_with_one_ps()
    address = Address(LOOPBACK, 1)
    greeted, may_go_on = threading.Event(), threading.Event()

    def refusal(greeting: Greeting) -> str:
        greeted.set()
        assert may_go_on.wait(WAIT_SECS)
        return ""

    with exchanging(address, None, refusal, serve_until_its_end) as port, ThreadPoolExecutor(1) as pool:
        opened = pool.submit(connections.open, [address], [port])
        assert greeted.wait(WAIT_SECS)
        if is_accepted:
            may_go_on.set()
            opened.result(WAIT_SECS)
        began = time.monotonic()
        connections.close()
        if not is_accepted:
            with pytest.raises(LostPeerError):
                opened.result(WAIT_SECS)
            assert time.monotonic() - began < tested.CONNECT_SECS, "nobody waits for the ps"
            may_go_on.set()
        assert not connections._peers


def test_a_ps_that_refuses_the_worker_is_no_program_error() -> None:
    address = Address(LOOPBACK, 1)
    connections = connections_with_one_ps()
    with (
        exchanging(address, None, lambda _: "this ps does not train generation 1", serve_until_its_end) as port,
        pytest.raises(LostPeerError, match="ps 0 refuses this worker: this ps does not train generation 1"),
    ):
        connections.open([address], [port])


def test_a_ps_that_cannot_be_reached_is_named_with_its_port() -> None:
    connections = connections_with_one_ps()
    with pytest.raises(UnreachableError, match=r"ps 0 accepts no connection at 127.0.0.1:1: "):
        connections.open([Address(LOOPBACK, 20000)], [1])


def test_a_ps_of_another_machine_is_not_looked_for_on_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of this user can have the name of the same port here."""
    looked_for: list[int] = []
    dialed: list[tuple[str, int]] = []

    def refused(at: tuple[str, int], timeout_secs: float) -> socket.socket:
        del timeout_secs
        dialed.append(at)
        raise ConnectionRefusedError("no such ps")

    monkeypatch.setattr(tested, "connected_beside", lambda port, secs: looked_for.append(port))
    monkeypatch.setattr(tested.socket, "create_connection", refused)
    with pytest.raises(UnreachableError):
        connections_with_one_ps().open([Address("192.0.2.1", 2222)], [2226])
    assert dialed == [("192.0.2.1", 2226)]
    assert not looked_for
