"""The sessions of workers at a ps: one per worker, of the present generation, and ended with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import psfleet
from ps_service import exchanges as tested
from ps_service.exchange_graph import ExchangeCall
from ps_service.exchanges import Exchanges, accepting_exchanges
from psfleet.addresses import LOOPBACK, Address
from psfleet.errors import LostPeerError
from psfleet.exchange.buffers import BufferPool, TensorKind
from psfleet.exchange.messages import Greeting
from psfleet.polling import wait_until
from worker_service.connections import Connections

WAIT_SECS = 30.0
SIZE = 4
KIND = TensorKind(np.dtype(np.float32), SIZE)


class Graph:
    """Exchanges that return what was pushed plus the worker's index, or wait."""

    def __init__(self, num_segments: int = 1) -> None:
        self.num_segments = num_segments
        self.opens = threading.Event()
        self.opens.set()
        self.arrived = threading.Semaphore(0)
        self.error: Exception | None = None
        self.is_closed = False

    def call(self, segment: int, loss: int, worker: int) -> ExchangeCall | None:
        del worker
        if segment >= self.num_segments or loss:
            return None
        return ExchangeCall(BufferPool([KIND]), self._run)

    def _run(self, worker: np.ndarray, pushed: np.ndarray) -> list[np.ndarray]:
        self.arrived.release()
        assert self.opens.wait(WAIT_SECS)
        if self.error is not None:
            raise self.error
        return [pushed + np.float32(worker)]

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def ps(monkeypatch: pytest.MonkeyPatch, graph: Graph, limit: int = 4) -> Iterator[tuple[Exchanges, Callable[[], None]]]:
    """A ps that trains generation 1 of a run, and a function that ends it."""
    monkeypatch.setattr(tested, "has_connections", lambda *_: True)
    monkeypatch.setattr(tested, "ExchangeGraph", lambda *_: graph)
    fleet: Any = type("Fleet", (), {"worker_limit": limit})
    plan: Any = type(
        "Plan", (), {"run": "run", "generation": 1, "layout": None, "job": type("Job", (), {"fleet": fleet})}
    )
    with accepting_exchanges(Address(LOOPBACK, 1), None) as exchanges:
        yield exchanges, exchanges.admit("grpc://nowhere", plan)


def worker(index: int = 0, incarnation: int = 1, generation: int = 1, segments: int = 1) -> Connections:
    greeting = Greeting(
        version=psfleet.__version__,
        run="run",
        generation=generation,
        worker=index,
        incarnation=incarnation,
        session="",
        carries="pushes",
    )
    made = Connections(greeting, None, "ps", WAIT_SECS, WAIT_SECS)
    made.expect(0, [BufferPool([KIND]) for _ in range(segments)])
    return made


def connect(connections: Connections, exchanges: Exchanges) -> int:
    return connections.open([Address(LOOPBACK, 1)], [exchanges.port])


def ones() -> list[np.ndarray]:
    return [np.ones(SIZE, np.float32)]


def test_each_worker_gets_its_own_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        for index in range(3):
            connections = worker(index)
            session = connect(connections, exchanges)
            for _ in range(3):
                assert connections.exchange(session, 0, 0, ones())[0].tolist() == [1 + index] * SIZE
            connections.close()


def test_segments_of_a_step_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(num_segments=3)
    graph.opens.clear()
    with ps(monkeypatch, graph) as (exchanges, _):
        connections = worker(segments=3)
        session = connect(connections, exchanges)
        for segment in (2, 1, 0):
            connections.start(session, 0, segment, 0, ones())
        for _ in range(3):
            assert graph.arrived.acquire(timeout=WAIT_SECS), "all are there before one is answered"
        graph.opens.set()
        assert len(connections.finish(session)) == 3
        connections.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"generation": 2}, "this ps does not train generation 2 of 'run'"),
        ({"index": 4}, "the worker's index is 4, expected one below 4"),
    ],
)
def test_a_worker_that_does_not_belong_here_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], why: str
) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _), pytest.raises(LostPeerError, match=why):
        connect(worker(**changes), exchanges)


@pytest.mark.parametrize(("first", "second", "lasts"), [(1, 2, 1), (1, 1, 1), (2, 1, 0)])
def test_of_two_processes_with_one_index_the_newer_is_served(
    monkeypatch: pytest.MonkeyPatch, first: int, second: int, lasts: int
) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        both = [worker(0, first), worker(0, second)]
        sessions = []
        for connections in both:
            sessions.append(connect(connections, exchanges))
            if connections is both[0]:
                connections.exchange(sessions[0], 0, 0, ones())
        assert both[lasts].exchange(sessions[lasts], 0, 0, ones())
        with pytest.raises(LostPeerError):
            both[1 - lasts].exchange(sessions[1 - lasts], 0, 0, ones())
        both[lasts].close()


def test_the_sessions_of_a_generation_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph()
    with ps(monkeypatch, graph) as (exchanges, end):
        connections = worker()
        session = connect(connections, exchanges)
        connections.exchange(session, 0, 0, ones())
        end()
        with pytest.raises(LostPeerError):
            connections.exchange(session, 0, 0, ones())
        assert graph.is_closed
        with pytest.raises(LostPeerError, match="does not train generation 1"):
            connect(connections, exchanges)


def test_a_worker_hears_why_its_exchange_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph()
    graph.error = tf.errors.CancelledError(None, None, "the queue was closed")
    with ps(monkeypatch, graph) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        with pytest.raises(LostPeerError, match="ps 0: CancelledError: the queue was closed"):
            connections.exchange(session, 0, 0, ones())


@pytest.mark.parametrize("sizes", [[SIZE + 1], [1]])
def test_a_push_of_another_size_ends_the_session(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        with pytest.raises(LostPeerError):
            connections.exchange(session, 0, 0, [np.ones(size, np.float32) for size in sizes])


def test_a_push_to_a_segment_that_does_not_exist_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        with pytest.raises(LostPeerError):
            connections.exchange(session, 0, 1, ones())


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


def test_a_session_that_has_ended_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        connections.exchange(session, 0, 0, ones())
        connections.close()
        wait_until(lambda: not exchanges._sessions, WAIT_SECS, "no session")
