"""Which replies of the ps a worker stores, and when; the test decides when each ps answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.errors import BUG, LOST_PEERS, LostPeerError, ReplacedError
from psfleet.polling import wait_until
from worker_service import heartbeat as heartbeat_module
from worker_service.fleet_state import States
from worker_service.heartbeat import Heartbeat
from worker_service.progress import TrainingProgress

SECS = 30.0
"""Far more than any wait takes."""
GONE = LostPeerError("connection refused")
OVER = pb.ShardState(phase=pb.FINISHED, outcome=pb.Outcome(exit_code=70))
REPLACED = ReplacedError("the worker was replaced")


class Call:
    """A heartbeat call without a reply so far."""

    def __init__(self, request: pb.HeartbeatRequest) -> None:
        self.request = request
        self.answer: queue.SimpleQueue[pb.ShardState | Exception] = queue.SimpleQueue()


class Ps:
    """A ps that replies when the test says so, and cannot be reached after the test."""

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
        """The next call, which waits for its reply."""
        return self.asked.get(timeout=SECS)

    def go(self) -> None:
        """Fails all calls from now on."""
        self._is_gone = True
        for call in self._calls:
            call.answer.put(GONE)


@contextmanager
def beating(
    *ps: Ps, progress: TrainingProgress | None = None, index: int = 0
) -> Iterator[tuple[Heartbeat, list[list[int]]]]:
    """A worker's heartbeat, by default the chief's, and the step of each ps (-1: unknown) at each beat."""
    stop: Any = SimpleNamespace(must_leave=lambda index: False)
    fleet: Any = SimpleNamespace(ps=ps)
    progress = progress or TrainingProgress()
    heartbeat = Heartbeat(fleet, index, Address("worker", 2222), stop, progress, program="digest")
    seen: list[list[int]] = []
    heartbeat.listen(lambda states: seen.append(_steps(states)))
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


def test_a_ps_that_does_not_answer_does_not_delay_the_outcome_from_another() -> None:
    silent, other = Ps(), Ps()
    with beating(silent, other) as (heartbeat, _):
        silent.next_call()
        over = pb.ShardState(phase=pb.FINISHED, outcome=pb.Outcome(exit_code=70, message="the loss is NaN"))
        other.next_call().answer.put(over)
        wait_until(lambda: heartbeat.outcome is not None, SECS, "the outcome")
        assert heartbeat.outcome is not None
        assert heartbeat.outcome.exit_code == 70


def test_a_ps_with_a_pending_call_is_not_called_again() -> None:
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


def test_a_reply_to_a_call_from_before_detach_is_discarded() -> None:
    ps = Ps()
    with beating(ps) as (heartbeat, seen):
        ps.next_call().answer.put(pb.ShardState(step=1))
        wait_until(lambda: seen[-1:] == [[1]], SECS, "the first answer")
        before = ps.next_call()
        heartbeat.detach()
        assert _steps(heartbeat.states) == [-1]
        after = ps.next_call()
        count = len(seen)
        before.answer.put(pb.ShardState(step=2))
        after.answer.put(pb.ShardState(step=3))
        wait_until(lambda: seen[-1] == [3], SECS, "the reply to the call after detach")
        assert [2] not in seen[count - 1 :]


def test_a_ps_that_is_gone_has_no_state() -> None:
    ps = Ps()
    with beating(ps) as (_, seen):
        ps.next_call().answer.put(pb.ShardState(step=4))
        wait_until(lambda: seen[-1:] == [[4]], SECS, "the first answer")
        ps.next_call().answer.put(GONE)
        wait_until(lambda: seen[-1] == [-1], SECS, "the ps to be seen gone")


def test_a_heartbeat_reports_step_gradients_and_generation() -> None:
    ps, progress = Ps(), TrainingProgress()
    with beating(ps, progress=progress) as (heartbeat, _):
        ps.next_call().answer.put(pb.ShardState())
        progress.step_done(global_step=8, secs=0.1)
        heartbeat.attach(2, interrupt=lambda: None)
        ps.next_call().answer.put(pb.ShardState())
        request = ps.next_call().request
        assert (request.step, request.pushed, request.generation, request.address) == (8, 1, 2, "worker:2222")


def test_heartbeats_are_numbered() -> None:
    ps = Ps()
    with beating(ps):
        numbers = []
        for _ in range(3):
            call = ps.next_call()
            numbers.append(call.request.beat)
            call.answer.put(pb.ShardState())
        assert numbers == [1, 2, 3]


def test_a_replaced_worker_leaves_its_step_and_neither_listens_nor_calls_again() -> None:
    """Whatever it does next asks for the outcome first, and so it opens no session."""
    first, other = Ps(), Ps()
    interrupted = threading.Event()
    with beating(first, other) as (heartbeat, seen):
        heartbeat.attach(2, interrupted.set)
        first.next_call().answer.put(pb.ShardState(generation=2, phase=pb.RUNNING))
        other.next_call().answer.put(ReplacedError("worker 0 with incarnation 1 was replaced"))
        assert interrupted.wait(SECS)
        with pytest.raises(ReplacedError, match="worker 0 with incarnation 1 was replaced"):
            _ = heartbeat.outcome
        assert seen == []


@pytest.mark.parametrize(
    ("state", "is_useless"),
    [
        (pb.ShardState(generation=2, phase=pb.RUNNING), False),
        (pb.ShardState(generation=3, phase=pb.RUNNING), True),
        (pb.ShardState(generation=2, phase=pb.EMPTY), True),
        (pb.ShardState(generation=2, phase=pb.FINISHED), True),
    ],
    ids=["same generation", "another generation", "no shard", "run is over"],
)
def test_a_step_is_interrupted_when_its_generation_or_the_run_has_ended(state: pb.ShardState, is_useless: bool) -> None:
    ps = Ps()
    interrupted = threading.Event()
    with beating(ps) as (heartbeat, seen):
        heartbeat.attach(2, interrupted.set)
        ps.next_call().answer.put(state)
        if is_useless:
            assert interrupted.wait(SECS)
        else:
            wait_until(lambda: len(seen) >= 3, SECS, "three beats")
            assert not interrupted.is_set()


@pytest.mark.parametrize(
    ("step", "is_late"), [(8, True), (9, False), (None, False)], ids=["late", "at the last step", "opening a session"]
)
def test_a_worker_that_the_fleet_has_finished_without_leaves_its_step(step: int | None, is_late: bool) -> None:
    """The chief, which ends the run: it may be about to read thousands of batches, none of which is needed."""
    first, other, progress = Ps(), Ps(), TrainingProgress()
    interrupted = threading.Event()
    complete = pb.ShardState(generation=2, phase=pb.COMPLETE, step=9)
    with beating(first, other, progress=progress) as (heartbeat, seen):
        heartbeat.attach(2, interrupted.set)
        if step is not None:
            progress.session_opened(step)
        for state in (pb.ShardState(generation=2, phase=pb.RUNNING, step=9), complete):
            assert not interrupted.is_set(), "one ps still writes its part, or the last step is being pulled"
            first.next_call().answer.put(complete)
            other.next_call().answer.put(state)
        for ps in (first, other):
            ps.next_call().answer.put(complete)
        wait_until(lambda: len(seen) >= 3, SECS, "three beats")
        assert interrupted.wait(SECS if is_late else 0.2) == is_late


@pytest.mark.parametrize(
    ("index", "answer", "codes"),
    [
        pytest.param(1, OVER, [70], id="a worker whose run is over"),
        pytest.param(1, REPLACED, [LOST_PEERS], id="a worker that is replaced"),
        pytest.param(0, REPLACED, [LOST_PEERS], id="a chief that is replaced"),
        pytest.param(0, OVER, [], id="a chief whose run is over still has to report"),
    ],
)
def test_a_process_whose_training_program_does_not_return_exits(
    monkeypatch: pytest.MonkeyPatch, index: int, answer: pb.ShardState | Exception, codes: list[int]
) -> None:
    monkeypatch.setattr(heartbeat_module, "UNWIND_SECS", 0.05)
    ended: list[int] = []
    monkeypatch.setattr(heartbeat_module.os, "_exit", ended.append)
    ps = Ps()
    with beating(ps, index=index) as (heartbeat, _):
        ps.next_call().answer.put(answer)
        heartbeat._thread.join(SECS)
        assert not heartbeat._thread.is_alive()
    assert ended == codes


def test_each_heartbeat_says_which_program_is_trained() -> None:
    """A ps that was restarted learns it so, before another program can join."""
    ps = Ps()
    with beating(ps):
        for _ in range(2):
            call = ps.next_call()
            assert call.request.program == "digest"
            call.answer.put(pb.ShardState())


def test_a_bug_in_what_follows_a_heartbeat_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without heartbeats the process would hold neither its index nor its lease, and would learn no end of the run."""
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(heartbeat_module.os, "_exit", codes.put)
    ps = Ps()
    with beating(ps) as (heartbeat, _):
        heartbeat.listen(lambda states: {}["no such key"])
        ps.next_call().answer.put(pb.ShardState(step=1))
        assert codes.get(timeout=SECS) == BUG
