"""A chief that comes back with another job than that by which the ps train, or finds traces of a larger fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoint_samples import random_values, save
from support.chief_samples import Ps, sample_context, sample_job, shard_state

from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.job.job import Job
from worker_service.chief.events import Events
from worker_service.chief.ps_counts import gradients_of
from worker_service.chief.recovery import Recovery, RecoveryResult

LONGER = sample_job(train={"steps": 200, "batch_size": 8})


def recovery_of(out: Path, job: Job, ps: list[Ps]) -> tuple[Recovery, Events]:
    context = sample_context(out, ps, job=job)
    events = Events(out, job)
    return Recovery(context, lambda: random_values(1), {}, events), events


def test_ps_that_train_by_another_job_restore_the_newest_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 40, extra={"job": LONGER.model_dump(mode="json")})
    states = [shard_state(55, job=LONGER), shard_state(54, job=LONGER)]
    ps = [Ps(state) for state in states]
    recovery, events = recovery_of(tmp_path, sample_job(), ps)
    assert recovery.recover(states, last_step=0) == RecoveryResult(2, 40)
    assert all(one.configured for one in ps)
    [event] = events.all()
    assert (event.role, event.index, event.kind, event.steps_lost) == ("chief", 0, "job_changed", 15)
    assert event.cause == "the ps trained by another job; the job has changed: train.steps 200 -> 100"


def test_the_change_is_recorded_once_if_the_recovery_is_tried_again(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 40)
    states = [shard_state(55, job=LONGER), shard_state(55, job=LONGER)]
    ps = [Ps(state) for state in states]
    for _ in range(2):
        recovery, events = recovery_of(tmp_path, sample_job(), ps)
        configure = ps[1].configure
        ps[1].configure = lambda **_: (_ for _ in ()).throw(LostPeerError("gone"))  # type: ignore[method-assign]
        with pytest.raises(LostPeerError):
            recovery.recover(states, 0)
        ps[1].configure = configure  # type: ignore[method-assign]
    lost = pb.ShardState(run="run", phase=pb.EMPTY, cause="killed by SIGKILL")
    recovery.recover([shard_state(55, job=LONGER), lost], 0)
    assert [(event.kind, event.index, event.steps_lost) for event in events.all()] == [
        ("job_changed", 0, 15),
        ("restarted", 1, 0),
    ]


def test_ps_that_train_by_this_job_train_on(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 40)
    states = [shard_state(55), shard_state(55)]
    recovery, events = recovery_of(tmp_path, sample_job(), [Ps(state) for state in states])
    assert recovery.recover(states, 0).generation == 1
    assert not events.all()


def test_a_worker_of_a_larger_fleet_whose_index_this_job_does_not_have_is_no_event(tmp_path: Path) -> None:
    events = Events(tmp_path, sample_job())
    state = shard_state(20)
    for joins in (1, 2):
        del state.workers[:]
        state.workers.extend(pb.WorkerState(index=index, process=f"{index}-{joins}", joins=joins) for index in (0, 17))
        events.record_restarts([state, state])
    assert [(event.role, event.index) for event in events.all()] == [("chief", 0)]


def test_a_gradient_that_was_used_between_two_reads_of_a_ps_counts_as_pushed() -> None:
    """A ps reads what was pushed before what was used."""
    state = shard_state(20)
    state.pushed[:], state.used[:] = [5, 7], [6, 7]
    state.workers.extend(pb.WorkerState(index=index) for index in range(2))
    found = gradients_of([state], {})
    assert (found.pushed, found.used, found.dropped) == (13, 13, 0)
    assert found.per_worker["0"].pushed == 6
