"""How long a worker waits for the rest of the fleet, in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.program_samples import sample_job

from ps_service.run_state import Run
from psfleet import polling
from psfleet.control import control_pb2 as pb
from psfleet.errors import DeadlineError
from worker_service.fleet_wait import FleetWait

STALL_SECS, FIRST_BATCH_SECS = 600, 1800
"""The defaults of the job file."""
State = Callable[[float], pb.ShardState]


class Clock:
    """Replaces the `time` module of `psfleet.polling`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        # The product polls often: this test skips most of it.
        self.now += max(secs, 1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


class Beat:
    """A heartbeat of worker 1, which reads the state of ps 0 from the clock."""

    def __init__(self, clock: Clock, state: State, over_at: float = 1e9) -> None:
        self._clock, self._state, self._over_at = clock, state, over_at

    @property
    def states(self) -> list[pb.ShardState]:
        return [self._state(self._clock.now)]

    @property
    def outcome(self) -> pb.Outcome | None:
        return pb.Outcome() if self._clock.now >= self._over_at else None


def fleet_wait(beat: Beat) -> FleetWait:
    stop = SimpleNamespace(must_leave=lambda index: False)
    context: Any = SimpleNamespace(job=sample_job(), index=1, stop=stop)
    heartbeat: Any = beat
    return FleetWait(context, heartbeat)


def state(step: float, is_reading: bool = False, caller: int = 1) -> pb.ShardState:
    """What ps 0 replies to a heartbeat of a worker while the chief says whether it reads its first batch."""
    found = pb.ShardState()
    found.CopyFrom(reply(is_reading, caller))
    found.step, found.generation = int(step), 1
    return found


@functools.cache
def reply(is_reading: bool, caller: int) -> pb.ShardState:
    run = Run("run", "")
    for index in range(2):
        join = pb.JoinRequest(index=index, worker_limit=2, process=str(index))
        member = pb.Member(index=index, incarnation=run.join(join).incarnation, process=str(index))
        reading = is_reading and index == 0
        beat = pb.HeartbeatRequest(caller=pb.Caller(member=member), beat=1, reading_first_batch=reading)
        run.record_heartbeat(beat)
    return run.heartbeat_reply(caller)


def await_warm_up(beat: Beat, replaced_at: int = 1 << 60) -> None:
    fleet_wait(beat).until_step(100, "the chief to make 100 steps alone", lambda states: states[0].step >= replaced_at)


def test_a_warm_up_may_take_as_long_as_the_chief_makes_steps(clock: Clock) -> None:
    await_warm_up(Beat(clock, lambda now: state(now / 500)))
    assert clock.now == pytest.approx(100 * 500, abs=10)


def test_a_chief_that_makes_no_more_steps_ends_the_warm_up(clock: Clock) -> None:
    with pytest.raises(DeadlineError, match="600 s waiting for the chief to make 100 steps alone; it has made 7"):
        await_warm_up(Beat(clock, lambda now: state(min(now / 100, 7))))
    assert clock.now == pytest.approx(700 + STALL_SECS, abs=10)


def test_the_chief_may_take_longer_for_its_first_batch(clock: Clock) -> None:
    await_warm_up(Beat(clock, lambda now: state(0, is_reading=True) if now < 1700 else state(now)))
    assert clock.now == pytest.approx(1700, abs=10)
    clock.now = 0.0
    with pytest.raises(DeadlineError, match=r"after 1800 s waiting for the chief .* it has made 0"):
        await_warm_up(Beat(clock, lambda now: state(0, is_reading=True)))
    assert clock.now == pytest.approx(FIRST_BATCH_SECS, abs=10)


def test_the_end_of_the_run_and_a_new_generation_end_the_warm_up(clock: Clock) -> None:
    await_warm_up(Beat(clock, lambda now: state(now / 500), over_at=1000.0))
    assert clock.now == pytest.approx(1000, abs=10)
    await_warm_up(Beat(clock, lambda now: state(now / 500)), replaced_at=10)
    assert clock.now == pytest.approx(5000, abs=10)


def test_a_fleet_may_stand_still_longer_while_another_worker_reads_its_first_batch(clock: Clock) -> None:
    for is_reading, secs in ((True, FIRST_BATCH_SECS), (False, STALL_SECS)):
        beat = Beat(clock, lambda now, is_reading=is_reading: state(5, is_reading))
        assert fleet_wait(beat).stall_secs(beat.states) == secs


def test_its_own_first_batch_does_not_prolong_what_a_worker_waits_for(clock: Clock) -> None:
    beat = Beat(clock, lambda now: state(5, is_reading=True, caller=0))
    assert fleet_wait(beat).stall_secs(beat.states) == STALL_SECS


def test_a_run_that_is_held_has_no_deadline_until_it_trains_on(clock: Clock) -> None:
    held_secs = 10 * STALL_SECS

    def state(now: float) -> pb.ShardState:
        return pb.ShardState(phase=pb.RUNNING, step=40, final_step=100, hold_at=40 if now < held_secs else 50)

    with pytest.raises(DeadlineError):
        fleet_wait(Beat(clock, state)).until("the end", lambda states: False)
    assert held_secs <= clock.now <= held_secs + 2 * STALL_SECS


def test_a_ps_that_is_lost_in_a_held_run_may_come_back_until_the_deadline(clock: Clock) -> None:
    """However long the run was held before."""
    lost_at = 3 * STALL_SECS - 5

    def state(now: float) -> Any:
        is_lost = lost_at <= now < lost_at + 20
        return None if is_lost else pb.ShardState(phase=pb.RUNNING, step=40, final_step=100, hold_at=40)

    fleet_wait(Beat(clock, state)).until("the end", lambda states: clock.now >= lost_at + 30)
    assert clock.now == pytest.approx(lost_at + 30, abs=10)


def test_a_run_that_is_held_while_another_worker_reads_its_first_batch_has_no_deadline(clock: Clock) -> None:
    """Also if that has begun after `stall_secs`, in the time that a first batch may take beyond them."""
    held = pb.ShardState(phase=pb.RUNNING, step=40, final_step=100, hold_at=40)

    def reply_of(now: float) -> pb.ShardState:
        return state(40, is_reading=True) if now < STALL_SECS + 100 else held

    end = 5 * FIRST_BATCH_SECS
    fleet_wait(Beat(clock, reply_of)).until("the end", lambda states: clock.now >= end)
    assert clock.now == pytest.approx(end, abs=10)


def test_a_worker_can_wait_longer_than_the_chief_which_knows_why_the_run_does_not_end(clock: Clock) -> None:
    beat = Beat(clock, lambda now: state(5), over_at=STALL_SECS + 5)
    fleet_wait(beat).until("the end of the run", lambda states: False, extra_secs=10.0)
    assert clock.now == pytest.approx(STALL_SECS + 5, abs=2)
    with pytest.raises(DeadlineError, match=f"gave up after {STALL_SECS + 20} s"):
        fleet_wait(Beat(clock, lambda now: state(5))).until("the end", lambda states: False, extra_secs=20.0)
