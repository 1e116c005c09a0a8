"""A worker's exchanges by connections: in order, of the present session only, and ended by whatever goes wrong."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from support.exchange_samples import messages, share_nothing

import psfleet
from psfleet.addresses import LOOPBACK, Address
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import TensorKind
from psfleet.exchange.messages import Greeting, Kind, Push, Reply
from psfleet.exchange.server import exchanging
from worker_service import connections as tested
from worker_service.connections import Connections

WAIT_SECS = 30.0
SIZE = 5
GREETING = Greeting(
    version=psfleet.__version__, run="run", generation=1, worker=0, incarnation=1, session="", carries="pushes"
)
Answer = Callable[[Connection, int, np.ndarray], None]


def doubled(replies: Connection, segment: int, pushed: np.ndarray) -> None:
    """The answer of a ps that works: twice what was pushed."""
    values = pushed * 2
    Reply(Kind.PULLED, segment, num_bytes=values.nbytes).send(replies, [values])


class Ps:
    """A ps whose answers are given by a function; each segment has `SIZE` numbers."""

    def __init__(self, answer: Answer = doubled) -> None:
        self.answer = answer
        self.segments: list[int] = []
        self.num_segments = 1
        self.is_over = threading.Event()

    def serve(self, greeting: Greeting, pushes: Connection, replies: Connection) -> None:
        del greeting
        share_nothing(pushes, replies, self.num_segments)
        pushes.set_timeout(None)
        try:
            while True:
                push = Push.receive(pushes)
                pushed = np.empty(push.num_bytes // 4, np.float32)
                pushes.receive_into(pushed)
                self.segments.append(push.segment)
                self.answer(replies, push.segment, pushed)
        finally:
            self.is_over.set()


@contextmanager
def worker(
    *ps: Ps, segments: int = 1, step_secs: float = WAIT_SECS, unix_sockets: bool = True
) -> Iterator[tuple[Connections, Callable[[], int]]]:
    """The connections of a worker with some ps, and a function that opens a session."""
    address = Address(LOOPBACK, 1)
    with ExitStack() as stack:
        ports = [stack.enter_context(exchanging(address, None, lambda _: "", each.serve)) for each in ps]
        connections = Connections(GREETING, None, "ps", step_secs, unix_sockets)
        for shard, each in enumerate(ps):
            each.num_segments = segments
            connections.expect(shard, messages(TensorKind(np.dtype(np.float32), SIZE), segments))
        stack.callback(connections.close)
        yield connections, lambda: connections.open([address] * len(ps), ports)


def gradient(value: float) -> list[np.ndarray]:
    return [np.full(2, value, np.float32), np.full(SIZE - 2, value, np.float32)]


@pytest.mark.parametrize("unix_sockets", [False, True])
def test_a_step_with_one_ps_is_one_exchange(unix_sockets: bool) -> None:
    with worker(Ps(), unix_sockets=unix_sockets) as (connections, connect):
        session = connect()
        for step in range(5):
            (values,) = connections.exchange(session, 0, 0, gradient(step))
            assert values.tolist() == [2 * step] * SIZE


def test_a_worker_of_another_user_connects_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(Ps()) as (connections, connect):
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        session = connect()
        (values,) = connections.exchange(session, 0, 0, gradient(3))
        assert values.tolist() == [6] * SIZE


def test_a_step_with_several_ps_and_segments_is_complete_when_all_have_answered() -> None:
    ps = [Ps(), Ps()]
    with worker(*ps, segments=3) as (connections, connect):
        session = connect()
        for step in range(5):
            for shard in range(2):
                for segment in (2, 1, 0):
                    connections.start(session, shard, segment, 0, gradient(step + 10 * shard + 100 * segment))
            found = [values[0] for values in connections.finish(session)]
            assert found == [2 * (step + 10 * shard + 100 * segment) for shard in range(2) for segment in range(3)]
    assert ps[0].segments == [2, 1, 0] * 5, "in the order in which they were started"


def test_a_large_step_with_several_ps_is_received_from_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "INLINE_BYTES", 0)
    with worker(Ps(), Ps(), Ps()) as (connections, connect):
        session = connect()
        for shard in range(3):
            connections.start(session, shard, 0, 0, gradient(shard))
        assert [values[0] for values in connections.finish(session)] == [0, 2, 4]


def test_an_operation_of_an_earlier_session_does_not_use_the_connections_of_the_present_one() -> None:
    with worker(Ps()) as (connections, connect):
        earlier = connect()
        present = connect()
        for call in (
            lambda: connections.exchange(earlier, 0, 0, gradient(1)),
            lambda: connections.start(earlier, 0, 0, 0, gradient(1)),
            lambda: connections.finish(earlier),
        ):
            with pytest.raises(LostPeerError, match="the session has ended"):
                call()
        assert connections.exchange(present, 0, 0, gradient(3))[0][0] == 6, "it works on"


def test_a_ps_that_says_why_it_ends_is_quoted() -> None:
    def ended(replies: Connection, segment: int, pushed: np.ndarray) -> None:
        del segment, pushed
        Reply(Kind.ENDED, num_bytes=8).send(replies, [b"restored"])

    with worker(Ps(ended)) as (connections, connect):
        session = connect()
        with pytest.raises(LostPeerError, match="connection with a ps: ps 0: restored"):
            connections.exchange(session, 0, 0, gradient(1))
        with pytest.raises(LostPeerError, match="the session has ended"):
            connections.exchange(session, 0, 0, gradient(1))


@pytest.mark.parametrize(
    "reply", [Reply(Kind.PULLED, 1, 0, SIZE * 4), Reply(Kind.PULLED, 0, 0, SIZE * 4 + 1), Reply(9)]
)
def test_a_reply_that_nobody_has_asked_for_ends_the_session(reply: Reply) -> None:
    with worker(Ps(lambda replies, *_: reply.send(replies))) as (connections, connect):
        session = connect()
        with pytest.raises(LostPeerError, match="ps 0 sends a reply of"):
            connections.exchange(session, 0, 0, gradient(1))


def test_a_ps_that_closes_its_connections_is_lost() -> None:
    def close(replies: Connection, *_: object) -> None:
        replies.close()

    with worker(Ps(close)) as (connections, connect):
        session = connect()
        with pytest.raises(LostPeerError, match="connection with a ps"):
            connections.exchange(session, 0, 0, gradient(1))


def test_a_ps_that_is_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "SILENT_SECS", 0.2)
    with worker(Ps(lambda *_: None)) as (connections, connect):
        session = connect()
        with pytest.raises(LostPeerError, match=r"nothing was heard of a ps for 0.2 s"):
            connections.exchange(session, 0, 0, gradient(1))


def test_a_ps_that_gives_signs_of_life_is_awaited_until_the_deadline_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "SILENT_SECS", 0.5)

    def alive(replies: Connection, *_: object) -> None:
        while True:
            Reply(Kind.ALIVE).send(replies)
            threading.Event().wait(0.05)

    began = time.monotonic()
    with worker(Ps(alive), step_secs=1.0) as (connections, connect):
        session = connect()
        with pytest.raises(LostPeerError, match="DeadlineExceeded: ps 0"):
            connections.exchange(session, 0, 0, gradient(1))
    assert time.monotonic() - began >= 1.0


def test_closing_ends_a_step_that_waits() -> None:
    arrived = threading.Event()
    ps = Ps(lambda *_: arrived.set())
    with worker(ps) as (connections, connect), ThreadPoolExecutor(1) as pool:
        session = connect()
        step = pool.submit(connections.exchange, session, 0, 0, gradient(1))
        assert arrived.wait(WAIT_SECS)
        connections.close()
        with pytest.raises(LostPeerError):
            step.result(WAIT_SECS)
        assert ps.is_over.wait(WAIT_SECS), "the ps hears of it"


def test_a_push_that_fails_on_another_thread_ends_the_step() -> None:
    """A ps that answers before it has the push, and then does not take it."""

    class Hasty(Ps):
        def serve(self, greeting: Greeting, pushes: Connection, replies: Connection) -> None:
            share_nothing(pushes, replies, self.num_segments)
            Push.receive(pushes)
            doubled(replies, 0, np.zeros(SIZE, np.float32))
            pushes.close()
            self.is_over.wait(WAIT_SECS)

    hasty = Hasty()
    with worker(hasty, Ps()) as (connections, connect):
        session = connect()
        connections.start(session, 0, 0, 0, [np.zeros(20_000_000, np.float32)])
        connections.start(session, 1, 0, 0, gradient(1))
        with pytest.raises(LostPeerError, match="connection with a ps"):
            connections.finish(session)
        hasty.is_over.set()


def test_a_push_that_cannot_be_sent_ends_a_step_whose_ps_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ps that has the header of a push and does not read on; long before the deadline of the step."""
    monkeypatch.setattr(tested, "SILENT_SECS", 1.0)

    class Busy(Ps):
        def serve(self, greeting: Greeting, pushes: Connection, replies: Connection) -> None:
            share_nothing(pushes, replies, self.num_segments)
            Push.receive(pushes)
            while not self.is_over.wait(0.05):
                Reply(Kind.ALIVE).send(replies)

    busy = Busy()
    with worker(busy, Ps(), step_secs=600.0) as (connections, connect), ThreadPoolExecutor(1) as pool:
        session = connect()
        connections.start(session, 0, 0, 0, [np.zeros(20_000_000, np.float32)])
        connections.start(session, 1, 0, 0, gradient(1))
        finished = pool.submit(connections.finish, session)
        with pytest.raises(LostPeerError, match="lost connection with a ps"):
            finished.result(WAIT_SECS)
        busy.is_over.set()


def test_a_failure_of_an_earlier_session_does_not_end_the_present_one() -> None:
    with worker(Ps()) as (connections, connect):
        earlier, present = connect(), connect()
        connections._end(earlier)
        assert connections.exchange(present, 0, 0, gradient(3))[0][0] == 6
