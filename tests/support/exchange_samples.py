"""A ps that accepts the connections of workers, and whose exchanges are given by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import psfleet
from ps_service import exchanges as tested
from ps_service.exchange_graph import ExchangeCall
from ps_service.exchanges import Exchanges, accepting_exchanges
from psfleet.addresses import LOOPBACK, Address
from psfleet.exchange.buffers import BufferPool
from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import MessageLayout, TensorKind
from psfleet.exchange.messages import NOWHERE, Greeting, send_places
from psfleet.exchange.shared_memory import FilledMemory, ReceivedMemory
from worker_service.connections import Connections
from worker_service.ps_peer import Messages

WAIT_SECS = 30.0
SIZE = 4
KIND = TensorKind(np.dtype(np.float32), SIZE)


class Graph:
    """Exchanges that return what was pushed plus the worker's index, or wait.

    Attributes:
        waits_for: The segment that waits for `opens`; -1: all.
    """

    step_secs = WAIT_SECS

    def __init__(self, num_segments: int = 1, kind: TensorKind = KIND) -> None:
        self.num_segments = num_segments
        self.kind = kind
        self.waits_for = -1
        self.opens = threading.Event()
        self.opens.set()
        self.arrived = threading.Semaphore(0)
        self.error: Exception | None = None
        self.is_closed = False

    def call(self, segment: int, loss: int, worker: int) -> ExchangeCall | None:
        del worker
        if segment >= self.num_segments or loss:
            return None
        return ExchangeCall(BufferPool([self.kind]), None, partial(self._run, segment))

    def layouts(self, worker: int) -> dict[tuple[int, int], MessageLayout]:
        del worker
        return {(segment, 0): MessageLayout([self.kind]) for segment in range(self.num_segments)}

    def _run(self, segment: int, worker: np.ndarray, pushed: np.ndarray) -> list[np.ndarray]:
        self.arrived.release()
        if self.waits_for in (segment, -1):
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


def worker(
    index: int = 0,
    incarnation: int = 1,
    generation: int = 1,
    segments: int = 1,
    kind: TensorKind = KIND,
    unix_sockets: bool = True,
) -> Connections:
    greeting = Greeting(
        version=psfleet.__version__,
        run="run",
        generation=generation,
        worker=index,
        incarnation=incarnation,
        session="",
        carries="pushes",
    )
    made = Connections(greeting, None, "ps", WAIT_SECS, unix_sockets)
    made.expect(0, messages(kind, segments))
    return made


def share_nothing(pushes: Connection, replies: Connection, kinds: int = 1) -> None:
    """The begin of a session of a ps without shared memory.

    Args:
        kinds: Of pushes.
    """
    ReceivedMemory({}).share(pushes)
    if pushes.is_local:
        send_places(pushes, [NOWHERE] * kinds)
    FilledMemory.received(replies)


def messages(kind: TensorKind, segments: int) -> Messages:
    """Pushes and replies of one tensor."""
    pushes = {(segment, 0): MessageLayout([kind]) for segment in range(segments)}
    return Messages(pushes, [BufferPool([kind]) for _ in range(segments)])


def connect(connections: Connections, exchanges: Exchanges) -> int:
    return connections.open([Address(LOOPBACK, 1)], [exchanges.port])


def ones() -> list[np.ndarray]:
    return [np.ones(SIZE, np.float32)]
