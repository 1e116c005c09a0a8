"""Threads of replicas in async mode: none of them ends in silence."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.errors import LostPeerError, ProgramError
from worker_service.batches import BatchNumbers
from worker_service.in_graph.replica_session import ReplicaSession
from worker_service.in_graph.replica_threads import ReplicaThreads

SECS = 30.0


def ended_by(error: Exception) -> tuple[ReplicaThreads, threading.Event]:
    """The threads of one replica that has failed, and whether the session is closed."""
    closed = threading.Event()
    session: Any = SimpleNamespace(
        closed=closed, close=lambda wait_secs: closed.set(), _sessions=SimpleNamespace(watch=object)
    )
    context: Any = SimpleNamespace(job=sample_job())

    def warm_up(*_: object) -> None:
        raise error

    threads = ReplicaThreads(session, context, 1, warm_up)
    step: Any = None
    threads.start([step], [BatchNumbers(False, 2)])
    assert closed.wait(SECS), "the chief's own replica would train on alone"
    return threads, closed


@pytest.mark.parametrize("error", [ProgramError("NaN"), TypeError("a bug of psfleet")])
def test_a_replica_that_fails_closes_the_session_and_is_the_cause_of_its_end(error: Exception) -> None:
    threads, _ = ended_by(error)
    with pytest.raises(type(error), match=str(error)) as raised:
        threads.end(LostPeerError("the session is closed"))
    assert isinstance(raised.value.__cause__, LostPeerError)
    with pytest.raises(type(error), match=str(error)):
        threads.join(SECS)


def test_an_error_on_the_chiefs_own_thread_keeps_its_cause() -> None:
    """It is no cause of itself: who follows its causes to the innermost one would never end."""
    closed = threading.Event()
    session: Any = SimpleNamespace(closed=closed, close=lambda wait_secs: closed.set())
    context: Any = SimpleNamespace(job=sample_job())
    threads = ReplicaThreads(session, context, 1, lambda *_: None)
    lost = LostPeerError("ps 0 is gone")
    lost.__cause__ = OSError("connection reset")
    with pytest.raises(LostPeerError) as raised:
        threads.end(lost)
    assert raised.value is lost
    assert isinstance(lost.__cause__, OSError)
    assert closed.is_set()


def test_a_peer_that_a_replica_has_lost_does_not_matter_after_the_last_step() -> None:
    threads, _ = ended_by(LostPeerError("worker 1"))
    threads.join(SECS)


def test_the_steps_of_each_replica_are_watched_on_their_own() -> None:
    whole: Any = SimpleNamespace(_sessions=SimpleNamespace(watch=object), _watch=object())
    step: Any = None
    replicas = [ReplicaSession(whole, step, index) for index in (1, 2)]
    assert len({whole._watch, *(each._watch for each in replicas)}) == 3
