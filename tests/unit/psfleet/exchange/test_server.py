"""A ps accepts the two connections of a worker that it knows, and nothing else."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from support.exchange_server import LOST, WAIT_SECS, Ps, connected, greeted, served, session

import psfleet
from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.exchange import server
from psfleet.exchange.server import exchanging
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses


def test_a_session_has_a_connection_for_each_direction() -> None:
    ps = Ps()
    with served(ps) as port, session(port) as (pushes, replies), session(port, session="t") as (others, other_replies):
        others.send([b"y"])
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"
        assert other_replies.receive(1) == b"y"
    assert ps.num_sessions == 2


def test_a_worker_that_the_ps_does_not_know_is_told_why() -> None:
    ps = Ps()
    ps.refused = "no such generation"
    with served(ps) as port, connected(port) as connection:
        assert greeted(connection) == "no such generation"
        with pytest.raises(LOST):
            connection.receive(1)


def test_a_worker_of_another_version_is_told_why() -> None:
    with served(Ps()) as port, connected(port) as connection:
        assert greeted(connection, version="0.0.1") == f"the worker has psfleet 0.0.1, expected {psfleet.__version__}"


@pytest.mark.parametrize(
    "changes", [{"session": "other"}, {"worker": 1}, {"incarnation": 2}, {"run": "other"}, {"generation": 2}]
)
def test_pushes_without_replies_of_the_same_session_are_refused(changes: dict[str, object]) -> None:
    ps = Ps()
    with served(ps) as port, connected(port) as replies, connected(port) as pushes:
        assert greeted(replies) == ""
        with pytest.raises(LOST):
            greeted(pushes, carries="pushes", **changes)
    assert ps.num_sessions == 0


def test_a_second_connection_of_replies_is_refused() -> None:
    with served(Ps()) as port, connected(port) as replies, connected(port) as second:
        assert greeted(replies) == ""
        with pytest.raises(LOST):
            greeted(second)


def test_replies_whose_pushes_never_come_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_SECS", 0.2)
    with served(Ps()) as port, connected(port) as replies:
        assert greeted(replies) == ""
        with pytest.raises(LOST):
            replies.receive(1)


def test_all_of_many_workers_that_connect_at_once_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do when a generation begins."""
    monkeypatch.setattr(server, "MAX_GREETINGS", 2)
    ps = Ps()

    def connect(number: int) -> bool:
        with session(port, session=str(number)) as (pushes, replies):
            pushes.send([b"x"])
            return replies.receive(1) == b"x"

    with served(ps) as port, ThreadPoolExecutor(24) as pool:
        assert list(pool.map(connect, range(24))) == [True] * 24
    assert ps.num_sessions == 24


def test_strangers_that_say_nothing_do_not_keep_workers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_GREETINGS", 8)
    monkeypatch.setattr(server, "GREETING_SECS", 1.0)
    with ExitStack() as strangers, served(Ps()) as port:
        for _ in range(20):
            strangers.enter_context(connected(port))

        def is_served() -> bool:
            try:
                with session(port, session=str(threading.get_ident())) as (pushes, replies):
                    pushes.send([b"x"])
                    return replies.receive(1) == b"x"
            except OSError:
                return False

        wait_until(is_served, WAIT_SECS, "a session after the strangers' time is over", poll_secs=0.1)


def test_a_ps_goes_on_after_a_thread_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has a limit of threads, which strangers can use up."""
    ps, errors, real = Ps(), iter([RuntimeError("can't start new thread")] * 3), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "exchange" and (error := next(errors, None)) is not None:
            raise error
        real(thread)

    monkeypatch.setattr(server, "RETRY_SECS", 0.01)
    monkeypatch.setattr(server, "MAX_GREETINGS", 2)
    with served(ps) as port:
        monkeypatch.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with connected(port) as refused, pytest.raises(LOST):
                greeted(refused)
        with session(port) as (pushes, replies):
            pushes.send([b"x"])
            assert replies.receive(1) == b"x"


def test_replies_that_no_thread_can_keep_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        if isinstance(thread, threading.Timer) and thread.function.__name__ == "_drop":
            raise RuntimeError("can't start new thread")
        real(thread)

    real = threading.Thread.start
    with served(Ps()) as port:
        monkeypatch.setattr(threading.Thread, "start", start)
        with connected(port) as replies, pytest.raises(LOST):
            greeted(replies)
        monkeypatch.setattr(threading.Thread, "start", real)
        with session(port) as (pushes, other):
            pushes.send([b"x"])
            assert other.receive(1) == b"x"


def test_a_ps_accepts_connections_again_after_it_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with too many open files cannot accept any."""
    ps, errors = Ps(), iter([OSError(24, "too many open files")] * 3)
    real = socket.socket.accept

    def accept(listener: socket.socket) -> object:
        if (error := next(errors, None)) is not None:
            raise error
        return real(listener)

    monkeypatch.setattr(server, "RETRY_SECS", 0.05)
    monkeypatch.setattr(socket.socket, "accept", accept)
    with served(ps) as port, session(port) as (pushes, replies):
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"
    assert next(errors, None) is None, "it has failed"


def test_a_ps_on_loopback_listens_there_alone() -> None:
    with served(Ps()) as port, pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", port)):
        pass
    with served(Ps()) as port, socket.create_server(("127.0.0.2", port)):
        pass


def test_a_port_that_is_in_use_is_named() -> None:
    [free] = free_addresses(1)
    address = Address("ps-0", free.port - 3)
    with (
        socket.create_server(("", address.exchange_port)),
        pytest.raises(LostPeerError, match=f"port {address.exchange_port} of ps-0 for exchanges is in use"),
        exchanging(address, None, Ps().refusal, Ps().serve),
    ):
        pass
