"""The sessions of workers at a ps: one per worker, of the present generation, and ended with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.exchange_samples import SIZE, WAIT_SECS, Graph, connect, ones, ps, worker

from ps_service import exchanges as tested
from ps_service.answer_threads import AnswerThreads
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import TensorKind
from psfleet.polling import wait_until
from worker_service.session_errors import LostConnectionError


def test_each_worker_gets_its_own_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        for index in range(3):
            connections = worker(index)
            session = connect(connections, exchanges)
            for _ in range(3):
                assert connections.exchange(session, 0, 0, ones())[0].tolist() == [1 + index] * SIZE
            connections.close()


@pytest.mark.parametrize("segments", [1, 3])
def test_no_large_message_of_this_machine_goes_through_a_socket(monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """A worker keeps replies for longer than a step; they stay as they were."""
    large = TensorKind(np.dtype(np.float32), 100_000)
    received: list[int] = []
    real = Connection.receive_into

    def receive_into(self: Connection, *arrays: np.ndarray) -> None:
        received.append(sum(each.nbytes for each in arrays))
        real(self, *arrays)

    monkeypatch.setattr(Connection, "receive_into", receive_into)
    with ps(monkeypatch, Graph(num_segments=segments, kind=large)) as (exchanges, _):
        connections = worker(index=1, segments=segments, kind=large)
        session = connect(connections, exchanges)
        kept = []
        for step in range(20):
            for segment in range(segments):
                value = np.full(large.size, 10 * step + segment, np.float32)
                connections.start(session, 0, segment, 0, [value[:1000], value[1000:]])
            kept.append(connections.finish(session))
            for at, tensors in enumerate(kept[-2:], max(0, step - 1)):
                assert [(tensor == 10 * at + segment + 1).all() for segment, tensor in enumerate(tensors)]
            del kept[:-1], tensors
        connections.close()
    assert 0 < max(received) < 1000, "greetings and headers"


def mappings() -> set[str]:
    """Those of shared memory, of both ends."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "psfleet-exchange" in line}


def test_the_memory_of_a_session_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another one follows while it waits for a step, and if none follows."""
    monkeypatch.setattr(tested, "ALIVE_SECS", 0.01)
    large = TensorKind(np.dtype(np.float32), 100_000)
    graph = Graph(kind=large)
    with ps(monkeypatch, graph) as (exchanges, _), ThreadPoolExecutor(1) as pool:
        # Of sessions of other tests.
        others = mappings()
        first, second = worker(incarnation=1, kind=large), worker(incarnation=2, kind=large)
        graph.opens.clear()
        step = pool.submit(first.exchange, connect(first, exchanges), 0, 0, [np.ones(large.size, np.float32)])
        assert graph.arrived.acquire(timeout=WAIT_SECS)
        assert len(mappings() - others) == 4, "pushes and replies, each of both ends"
        connect(second, exchanges)
        with pytest.raises(LostPeerError):
            step.result(WAIT_SECS)
        del step
        graph.opens.set()
        wait_until(lambda: len(mappings() - others) == 4, WAIT_SECS, "the end of the memory of the first session")
        second.close()
        wait_until(lambda: not mappings() - others, WAIT_SECS, "the end of the memory of the second one")


def test_an_ended_session_has_no_memory_while_others_have_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    large = TensorKind(np.dtype(np.float32), 100_000)
    with ps(monkeypatch, Graph(kind=large)) as (exchanges, _):
        others = mappings()
        connections = worker(kind=large)
        connect(connections, exchanges)
        wait_until(lambda: len(mappings() - others) == 4, WAIT_SECS, "pushes and replies, each of both ends")
        (session,) = exchanges._sessions.values()
        connections.close()
        wait_until(lambda: not mappings() - others, WAIT_SECS, "the end of its memory")
        assert session.greeting.worker == 0


def test_a_push_that_fails_keeps_no_memory_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    large = TensorKind(np.dtype(np.float32), 100_000)
    with ps(monkeypatch, Graph(num_segments=2, kind=large)) as (exchanges, _):
        others = mappings()
        connections = worker(segments=2, kind=large)
        session = connect(connections, exchanges)
        connections._peers[0]._pushes.close()
        for segment in range(2):
            connections.start(session, 0, segment, 0, [np.ones(large.size, np.float32)])
        with pytest.raises(LostPeerError):
            connections.finish(session)
        wait_until(lambda: not mappings() - others, WAIT_SECS, "the end of the memory of the session")


def test_a_worker_hears_that_it_has_put_a_push_where_it_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    large = TensorKind(np.dtype(np.float32), 100_000)
    with ps(monkeypatch, Graph(kind=large)) as (exchanges, _):
        connections = worker(kind=large)
        session = connect(connections, exchanges)
        connections._peers[0]._places[0, 0] = 4096
        with pytest.raises(LostPeerError, match="at 4096, where it may not"):
            connections.exchange(session, 0, 0, [np.ones(large.size, np.float32)])


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
        sessions = [connect(both[0], exchanges)]
        both[0].exchange(sessions[0], 0, 0, ones())
        if lasts:
            sessions.append(connect(both[1], exchanges))
        else:
            with pytest.raises(LostConnectionError, match="ps 0 has ended a new connection"):
                connect(both[1], exchanges)
        assert both[lasts].exchange(sessions[lasts], 0, 0, ones())
        if lasts:
            with pytest.raises(LostPeerError):
                both[0].exchange(sessions[0], 0, 0, ones())
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


@pytest.mark.parametrize("expected", [SIZE, pytest.param(100_000, id="shared memory")])
@pytest.mark.parametrize("change", [1, -1])
def test_a_push_of_another_size_ends_the_session(monkeypatch: pytest.MonkeyPatch, expected: int, change: int) -> None:
    kind = TensorKind(np.dtype(np.float32), expected)
    with ps(monkeypatch, Graph(kind=kind)) as (exchanges, _):
        connections = worker(kind=kind)
        session = connect(connections, exchanges)
        size = expected + change
        with pytest.raises(LostPeerError, match=f"a push of {size * 4} bytes to segment 0 and loss 0"):
            connections.exchange(session, 0, 0, [np.ones(size, np.float32)])


def test_a_push_to_a_segment_that_does_not_exist_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        connections.start(session, 0, 1, 0, ones())
        with pytest.raises(LostPeerError):
            connections.finish(session)


def test_a_push_of_a_loss_that_does_not_exist_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        with pytest.raises(LostPeerError):
            connections.exchange(session, 0, 1, ones())


def test_an_exchange_that_fails_unexpectedly_is_told_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph()
    graph.error = ValueError("a bug")
    with ps(monkeypatch, graph) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        with pytest.raises(LostPeerError, match="ps 0: ValueError: a bug"):
            connections.exchange(session, 0, 0, ones())
        wait_until(lambda: not exchanges._sessions, WAIT_SECS, "no session")
    assert "the exchange of worker 0 failed" in caplog.text


def test_segments_are_answered_one_after_the_other_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = []

    def refuse(self: AnswerThreads, task: object) -> bool:
        del self
        refused.append(task)
        return False

    monkeypatch.setattr(AnswerThreads, "run", refuse)
    with ps(monkeypatch, Graph(num_segments=3)) as (exchanges, _):
        connections = worker(segments=3)
        session = connect(connections, exchanges)
        for segment in (2, 1, 0):
            connections.start(session, 0, segment, 0, ones())
        assert len(connections.finish(session)) == 3
        assert len(refused) == 3
        connections.close()


def test_a_session_that_has_ended_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps(monkeypatch, Graph()) as (exchanges, _):
        connections = worker()
        session = connect(connections, exchanges)
        connections.exchange(session, 0, 0, ones())
        connections.close()
        wait_until(lambda: not exchanges._sessions, WAIT_SECS, "no session")
