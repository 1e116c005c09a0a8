"""What a worker hears from its ps, and when, with ps that answer when the test lets them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.polling import wait_until
from worker_service import heartbeat as heartbeat_module
from worker_service.fleet_state import States
from worker_service.heartbeat import Heartbeat

SECS = 30.0
"""Far more than any of it takes."""
GONE = LostPeerError("nobody is there")


class Call:
    """A heartbeat under way."""

    def __init__(self, request: pb.HeartbeatRequest) -> None:
        self.request = request
        self.answer: queue.SimpleQueue[pb.ShardState | Exception] = queue.SimpleQueue()


class Ps:
    """A ps whose every answer is given by the test; it is gone once the test is over."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._calls: list[Call] = []
        self._is_gone = False

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.ShardState:
        """See PsClient: blocks until the call is answered."""
        call = Call(request)
        self._calls.append(call)
        self.asked.put(call)
        answer = GONE if self._is_gone else call.answer.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def next_call(self) -> Call:
        """The next heartbeat, which waits for its answer."""
        return self.asked.get(timeout=SECS)

    def go(self) -> None:
        """Answers no call any more."""
        self._is_gone = True
        for call in self._calls:
            call.answer.put(GONE)


@contextmanager
def beating(*ps: Ps) -> Iterator[tuple[Heartbeat, list[list[int]]]]:
    """A chief's heartbeat, and the step of each ps (-1: not known) at each beat; ps answer as they like in the end."""
    stop: Any = SimpleNamespace(must_leave=lambda index: False)
    fleet: Any = SimpleNamespace(ps=ps)
    heartbeat = Heartbeat(fleet, 0, Address("worker", 2222), stop)
    seen: list[list[int]] = []
    heartbeat.on_beat = lambda states: seen.append(_steps(states))
    heartbeat.start()
    try:
        yield heartbeat, seen
    finally:
        for one in ps:
            one.go()
        heartbeat.close()


def _steps(states: States) -> list[int]:
    return [-1 if state is None else state.step for state in states]


@pytest.fixture(autouse=True)
def _fast_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "BEAT_SECS", 0.05)


def test_a_ps_that_does_not_answer_keeps_no_news_of_another_back() -> None:
    silent, other = Ps(), Ps()
    with beating(silent, other) as (heartbeat, _):
        silent.next_call()
        over = pb.ShardState(phase=pb.FINISHED, outcome=pb.Outcome(exit_code=70, message="the loss is NaN"))
        other.next_call().answer.put(over)
        wait_until(lambda: heartbeat.outcome is not None, SECS, "the outcome")
        assert heartbeat.outcome is not None
        assert heartbeat.outcome.exit_code == 70


def test_a_ps_that_does_not_answer_is_not_asked_again_while_another_is() -> None:
    silent, other = Ps(), Ps()
    with beating(silent, other) as (_, seen):
        waiting = silent.next_call()
        for step in range(3):
            other.next_call().answer.put(pb.ShardState(step=step))
        wait_until(lambda: [-1, 2] in seen, SECS, "three beats")
        assert silent.asked.empty()
        waiting.answer.put(pb.ShardState(step=7))
        wait_until(lambda: seen[-1][0] == 7, SECS, "the late answer")
        waiting = silent.next_call()
        waiting.answer.put(GONE)
        wait_until(lambda: seen[-1][0] == -1, SECS, "the ps to be seen gone")


def test_what_was_asked_before_a_loss_is_not_heard_after_it() -> None:
    ps = Ps()
    with beating(ps) as (heartbeat, seen):
        ps.next_call().answer.put(pb.ShardState(step=1))
        wait_until(lambda: seen[-1:] == [[1]], SECS, "the first answer")
        before = ps.next_call()
        heartbeat.listen_afresh()
        assert _steps(heartbeat.states) == [-1]
        after = ps.next_call()
        count = len(seen)
        before.answer.put(pb.ShardState(step=2))
        after.answer.put(pb.ShardState(step=3))
        wait_until(lambda: seen[-1] == [3], SECS, "the answer of after the loss")
        assert [2] not in seen[count - 1 :]


def test_a_ps_that_is_gone_has_no_state() -> None:
    ps = Ps()
    with beating(ps) as (_, seen):
        ps.next_call().answer.put(pb.ShardState(step=4))
        wait_until(lambda: seen[-1:] == [[4]], SECS, "the first answer")
        ps.next_call().answer.put(GONE)
        wait_until(lambda: seen[-1] == [-1], SECS, "the ps to be seen gone")


def test_a_heartbeat_tells_what_the_training_loop_has_done() -> None:
    ps = Ps()
    with beating(ps) as (heartbeat, _):
        ps.next_call().answer.put(pb.ShardState())
        heartbeat.step, heartbeat.pushed, heartbeat.generation = 8, 9, 2
        ps.next_call().answer.put(pb.ShardState())
        request = ps.next_call().request
        assert (request.step, request.pushed, request.generation, request.address) == (8, 9, 2, "worker:2222")
