"""What a ps logs of a step that waits or fails, and which runs it removes."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from support.chief_samples import sample_job

from ps_service import service
from ps_service.run_state import ABANDONED_SECS, IDLE_SECS, Run
from ps_service.shard import Shard
from ps_service.worker_record import LEASE_SECS
from psfleet.control import control_pb2 as pb
from psfleet.errors import BUG, DeadlineError, ReplacedError
from psfleet.job.fleet import Fleet


def plan() -> Any:
    """Of generation 1, with a quorum of 2."""
    layout = SimpleNamespace(digest=lambda: "digest of the layout", tables=())
    return SimpleNamespace(generation=1, job=SimpleNamespace(quorum=2), layout=layout)


@dataclass
class WaitingShard:
    """Stands for a shard at step 4 whose last update was 10 s ago."""

    answer: list[int] | Exception
    step: int = 4
    final_step: int = 9
    last_step: int = 9
    last_update: float = field(default_factory=lambda: time.monotonic() - 10)
    plan: Any = field(default_factory=plan)
    is_paused: bool = False
    is_complete: bool = False

    def local_steps(self) -> list[int]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def run_with(answer: list[int] | Exception) -> Run:
    run = Run("name", "")
    for index in range(3):
        join = pb.JoinRequest(index=index, worker_limit=3, process=str(index))
        member = pb.Member(index=index, incarnation=run.join(join).incarnation, process=str(index))
        run.record_heartbeat(pb.HeartbeatRequest(caller=pb.Caller(member=member), beat=1, leaving=index == 2))
    shard: Any = WaitingShard(answer)
    run.install(shard)
    return run


def test_a_step_that_waits_is_logged_once_with_the_workers_that_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    run = run_with([4, 3, 2])
    with caplog.at_level(logging.WARNING, "psfleet.ps"):
        run.log_slow_step(5)
        run.log_slow_step(5)
    assert caplog.messages == ["step 4 waits for worker 1, worker 2 (gone)"]
    assert [vars(record)["run"] for record in caplog.records] == ["name"]


def test_a_step_waits_for_no_part_that_pushes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    run_with([3]).log_slow_step(5)
    [message] = caplog.messages
    assert message.endswith("waits for worker 0")


@pytest.mark.parametrize(("parts", "found"), [(1, [0]), (3, [0, 1, 2])])
def test_a_worker_whose_replica_has_several_parts_learns_where_they_are(parts: int, found: list[int]) -> None:
    run = run_with([4, 4, 4])
    assert run.shard is not None
    run.shard.plan.job.fleet = Fleet(workers=3, parts=parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ps_service.run_state.describe", lambda *_: None)
        assert [worker.index for worker in run.heartbeat_reply(1).workers] == found
        assert len(run.heartbeat_reply(0).workers) == 3


def test_a_step_that_pauses_waits_for_the_chief(caplog: pytest.LogCaptureFixture) -> None:
    run = run_with([4, 4, 4])
    shard: Any = run.shard
    shard.is_paused = True
    with caplog.at_level(logging.WARNING, "psfleet.ps"):
        run.log_slow_step(5)
    assert caplog.messages == ["step 4 waits for the chief to decide from which step on the learning rate is reduced"]


@pytest.mark.parametrize("error", [tf.errors.CancelledError(None, None, "closed"), RuntimeError("a closed Session")])
def test_a_shard_that_is_closed_meanwhile_ends_nothing(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A new generation closes it while the ps looks."""
    run_with(error).log_slow_step(5)
    assert not caplog.messages


@pytest.mark.parametrize("is_at_end", [False, True], ids=["its part is not saved", "the last step is made"])
def test_a_ps_that_got_a_signal_is_needed_as_long_as_a_chief_can_save(
    monkeypatch: pytest.MonkeyPatch, is_at_end: bool
) -> None:
    run = run_with([])
    shard: Any = run.shard
    shard.writer = SimpleNamespace(is_busy=not is_at_end)
    shard.step = shard.final_step if is_at_end else 4
    servicer: Any = SimpleNamespace(finished=threading.Event(), runs=lambda: [run])
    monkeypatch.setattr(service, "SAVE_SECS", 0.05)
    assert run.is_saving()
    assert not service._is_finished(servicer), "it gives up"
    monkeypatch.setattr(service, "SAVE_SECS", 10.0)
    threading.Timer(0.05, lambda: (run.finish(pb.Outcome()), servicer.finished.set())).start()
    assert service._is_finished(servicer)
    assert not run.is_saving()


def test_a_ps_that_got_a_signal_between_checkpoints_or_without_a_chief_ends_at_once() -> None:
    between, alone = run_with([]), Run("alone", "")
    for run, is_busy in ((between, False), (alone, True)):
        shard: Any = WaitingShard([])
        shard.writer = SimpleNamespace(is_busy=is_busy)
        run.install(shard)
        assert not run.is_saving()


def test_no_worker_waits_for_one_that_is_gone_or_has_no_session() -> None:
    """Worker 2 has left; worker 1 loses its session, gets another one, and sends no heartbeat any more."""
    run = run_with([])
    shard: Any = run.shard
    present: list[list[int]] = []
    shard.set_present = present.append
    run.exclude_absent()
    for beat, generation in enumerate((-1, 1), start=2):
        member = pb.Member(index=1, incarnation=2, process="1")
        run.record_heartbeat(pb.HeartbeatRequest(caller=pb.Caller(member=member), beat=beat, generation=generation))
        run.exclude_absent()
    run._clock = lambda: time.monotonic() + LEASE_SECS
    run.exclude_absent()
    assert present == [[0, 1], [0], [0, 1], []]


def test_a_ps_that_no_worker_speaks_to_gives_up_after_the_deadline_of_its_job() -> None:
    run, job = Run("alone", ""), sample_job(deadlines={"stall_secs": 7})
    servicer: Any = SimpleNamespace(runs=lambda: [run], drop_finished=lambda: None)
    own: Any = SimpleNamespace(job=job)
    run.last_heartbeat = time.monotonic() - 6
    service._check_runs(servicer, own)
    run.last_heartbeat -= 1
    with pytest.raises(DeadlineError, match="gave up after 7 s waiting for a heartbeat of any worker"):
        service._check_runs(servicer, own)
    own.job = None
    service._check_runs(servicer, own)


def test_the_newest_generation_is_known_while_the_next_shard_is_built() -> None:
    """The chief asks for one above it; a new chief, too, may ask meanwhile."""
    run = run_with([])
    run.take_shard()
    state = run.state()
    assert (state.phase, state.generation) == (pb.EMPTY, 1)


def test_a_run_that_no_worker_speaks_for_is_idle_with_a_shard_much_later() -> None:
    now = [0.0]
    empty, trained, over = Run("empty", ""), run_with([]), Run("over", "")
    over.finish(pb.Outcome())
    for run in (empty, trained, over):
        run._clock, run.last_heartbeat = (lambda: now[0]), 0.0
    for secs, expected in (
        (IDLE_SECS, [False, False, False]),
        (IDLE_SECS + 1, [True, False, False]),
        (ABANDONED_SECS, [True, False, False]),
        (ABANDONED_SECS + 1, [True, True, False]),
    ):
        now[0] = secs
        assert [run.is_idle() for run in (empty, trained, over)] == expected
    for run in (empty, trained):
        with run.building:
            assert not run.is_idle(), "its shard is being built"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (tf.errors.InternalError(None, None, "no memory"), "no memory"),
        (RuntimeError("can't start new thread"), "RuntimeError: can't start new thread"),
    ],
)
def test_whatever_stops_the_updates_of_a_shard_ends_the_run(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stay up and make no step otherwise."""

    def fail(shard: Shard) -> None:
        raise error

    monkeypatch.setattr(Shard, "_advance", fail)
    shard, failures = Shard.__new__(Shard), list[tuple[str, int]]()
    plan: Any = SimpleNamespace(run="name", shard=1)
    shard.plan, shard.step, shard._closing = plan, 6, threading.Event()
    shard._on_failure = lambda message, exit_code: failures.append((message, exit_code))
    shard._logger = Run("name", "").logger
    shard._loop()
    assert failures == [(f"ps 1: update 7 failed: {reason}", BUG)]


class CountedLock:
    """A lock that calls a function each time that it becomes free."""

    def __init__(self, when_free: Any) -> None:
        self._lock = threading.RLock()
        self._when_free = when_free
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._lock.release()
        if self._depth == 0:
            self._when_free()


def test_no_other_chief_can_join_between_the_admission_of_the_outcome_and_its_storage() -> None:
    run = Run("name", "")
    older = pb.Member(index=0, incarnation=run.join(pb.JoinRequest(worker_limit=3, process="older")).incarnation)
    older.process = "older"
    outcomes: list[Any] = []
    lock: Any = CountedLock(lambda: outcomes.append(run.view.outcome))
    run.lock = lock
    assert run.finish(pb.Outcome(exit_code=75, message="frozen"), older)
    assert [outcome is not None for outcome in outcomes] == [True], "it was free in between"


def test_the_outcome_of_a_replaced_chief_is_refused() -> None:
    run = Run("name", "")
    for process in ("older", "newer"):
        run.join(pb.JoinRequest(worker_limit=3, process=process))
    with pytest.raises(ReplacedError):
        run.finish(pb.Outcome(exit_code=75), pb.Member(incarnation=1, process="older"))
    assert run.outcome is None
