"""What a worker and a ps take for a sign of life on their connections, and for how long they wait for one."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from typing import Any, cast

import numpy as np
import pytest
from support.exchange_samples import KIND, SIZE, WAIT_SECS, Graph, connect, ones, ps, worker

from ps_service import exchanges as tested
from ps_service.exchange_graph import ExchangeGraph
from ps_service.exchange_session import ExchangeSession
from psfleet.exchange.connection import SILENT_SECS, Connection
from psfleet.exchange.message_layout import TensorKind
from psfleet.exchange.messages import Greeting, Kind, Push, Reply


def test_a_worker_that_waits_long_hears_that_the_ps_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ps sends signs of life more often than a worker takes it for lost."""
    monkeypatch.setattr(tested, "ALIVE_SECS", 0.05)
    monkeypatch.setattr("worker_service.connections.SILENT_SECS", 1.0)
    graph = Graph()
    graph.opens.clear()
    with ps(monkeypatch, graph) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        threading.Timer(2.5, graph.opens.set).start()
        assert connections.exchange(session, 0, 0, ones())[0].tolist() == [1] * SIZE
        connections.close()


def test_a_ps_gives_signs_of_life_while_a_push_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with several ps listens while it sends, for as long as a slow link takes."""
    monkeypatch.setattr(tested, "ALIVE_SECS", 0.05)
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        connect(connections, exchanges)
        peer = connections._peers[0]
        Push(0, 0, KIND.num_bytes).send(peer._pushes)
        assert Reply.receive(peer._replies).kind == Kind.ALIVE
        connections.close()


def test_a_sign_of_life_does_not_wait_for_room_that_an_answer_took_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Unix socket has room for a sign while a quarter of its buffer is used at most."""
    first, second = socket.socketpair()
    replies = Connection(first)
    session: Any = ExchangeSession(cast(Greeting, None), cast(ExchangeGraph, None), replies, replies)
    session._num_waiting = 1
    real = replies.can_send

    def answered_meanwhile() -> bool:
        """Another thread of the ps sends an answer as soon as it can."""
        if session._sending.acquire(blocking=False):
            replies.send([np.zeros(600_000, np.uint8)])
            session._sending.release()
        return real()

    monkeypatch.setattr(replies, "can_send", answered_meanwhile)
    replies.set_timeout(0.2)
    with closing(replies), closing(Connection(second)) as answers:
        session.show_life()
        assert Reply.receive(answers).kind == Kind.ALIVE, "the answer waits for the sign"
        assert real(), "the connection is open"


def test_a_worker_that_computes_gets_no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not read them: they would fill the connection, and wait for it."""
    monkeypatch.setattr(tested, "ALIVE_SECS", 0.01)
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        connections.exchange(session, 0, 0, ones())
        peer = connections._peers[0]
        peer._replies.set_timeout(0.3)
        with pytest.raises(TimeoutError):
            peer._replies.receive(1)
        connections.close()


def test_signs_of_life_do_not_come_within_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """One segment is answered, slowly read, while another one still waits."""
    large = TensorKind(np.dtype(np.float32), 2_000_000)
    monkeypatch.setattr(tested, "ALIVE_SECS", 0.001)
    graph = Graph(num_segments=2, kind=large)
    graph.waits_for = 0
    graph.opens.clear()
    with ps(monkeypatch, graph) as (exchanges, _):
        connections = worker(segments=2, kind=large, unix_sockets=False)
        session = connect(connections, exchanges)
        value = np.arange(large.size, dtype=np.float32)
        connections.start(session, 0, 0, 0, [value])
        connections.start(session, 0, 1, 0, [value])
        for _ in range(2):
            assert graph.arrived.acquire(timeout=WAIT_SECS)
        peer = connections._peers[0]
        while (reply := Reply.receive(peer._replies)).kind == Kind.ALIVE:
            pass
        assert (reply.kind, reply.segment, reply.num_bytes) == (Kind.PULLED, 1, large.num_bytes)
        found = np.empty_like(value)
        for at in range(0, large.size, 100_000):
            peer._replies.receive_into(found[at : at + 100_000])
        assert np.array_equal(found, value)
        graph.opens.set()
        connections.close()


def test_a_worker_may_compute_for_as_long_as_it_likes_between_two_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []
    monkeypatch.setattr(Connection, "set_timeout", lambda _, secs: seen.append(secs))
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        connections.exchange(session, 0, 0, ones())
        connections.close()
    assert sorted(map(str, seen)) == sorted(map(str, [None, WAIT_SECS, SILENT_SECS, SILENT_SECS]))
