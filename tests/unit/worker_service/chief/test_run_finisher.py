"""How the chief waits for the last checkpoint of a run."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, sample_job, shard_state, with_parts

from psfleet.checkpoint import manifest
from psfleet.control import control_pb2 as pb
from psfleet.errors import DeadlineError, LostPeerError, StoppedError, StorageError
from worker_service.chief import checkpoints, run_finisher
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.chief import Chief
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.chief.run_attempt import Attempt
from worker_service.chief.run_finisher import RunFinisher
from worker_service.chief.storage import Storage
from worker_service.run_context import RunContext

BRIEF = {"step_secs": 0.001}


def finisher(out: Path, deadlines: dict[str, float], num_waits: int) -> RunFinisher:
    """A finisher whose second ps needs a number of polls to write its part of step 100."""
    checkpoint = save(out / "checkpoints", 100)
    (checkpoint.folder / "manifest.json").unlink()
    waits: list[Any] = [shard_state(100) for _ in range(num_waits)]
    done = [with_parts(shard_state(100, phase=pb.COMPLETE), shard, checkpoint) for shard in range(2)]
    context = sample_context(out, [Ps(done[0]), Ps(*waits, done[1])], sample_job(deadlines=deadlines))
    return finisher_of(context)


def finisher_of(context: RunContext, started: float = 0.0) -> RunFinisher:
    recorder: Any = None
    events = Events(context.out, context.job)
    storage = Storage(events, context.job.deadlines.stall_secs)
    return RunFinisher(
        context, recorder, CheckpointCommitter(context, {}, storage), storage, Attempt(context.out, started, "")
    )


def test_a_last_part_that_takes_longer_than_a_step_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "psfleet.chief"):
        assert finisher(tmp_path, BRIEF, num_waits=4).commit_last(1).step == 100
    assert "waiting for ps 1 to write its part of step 100" in caplog.messages


def test_the_chief_trains_on_if_a_ps_that_has_made_its_last_step_gets_a_later_one(tmp_path: Path) -> None:
    """Async mode: ps 0 has accepted a stop at step 98 that ps 1 refused, and ps 1 has made the job's last step."""
    stopped = shard_state(98, phase=pb.COMPLETE, final_step=98)
    ps = [Ps(stopped, shard_state(98)), Ps(shard_state(100, phase=pb.COMPLETE))]
    context = sample_context(tmp_path, ps, sample_job(deadlines=BRIEF | {"stall_secs": 5}), stops=True)
    chief: Any = SimpleNamespace(
        _components=SimpleNamespace(finisher=finisher_of(context)),
        _shards=np.array([[98, 98], [100, 100]]),
        _progress=SimpleNamespace(step=98),
        _await_end=lambda generation: True,
    )
    Chief.after_final_step(chief, 1)
    assert [each.scheduled for each in ps] == [[(101, True)]] * 2, "the ps end at the job's last step"


def test_a_last_part_that_is_never_written_ends_the_wait(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="the parts of the last checkpoint"):
        finisher(tmp_path, BRIEF | {"stall_secs": 0.2}, num_waits=1000).commit_last(1)


def test_a_last_step_of_another_generation_is_not_the_end_of_this_one(tmp_path: Path) -> None:
    """Another chief has restored a checkpoint, and its fleet has made the last step."""
    checkpoint = save(tmp_path / "checkpoints", 100, generation=2)
    done = [with_parts(shard_state(100, generation=2, phase=pb.COMPLETE), shard, checkpoint) for shard in range(2)]
    last = finisher_of(sample_context(tmp_path, [Ps(state) for state in done], sample_job(deadlines=BRIEF)))
    with pytest.raises(LostPeerError, match="a ps was lost before the last checkpoint was complete"):
        last.commit_last(1)


def test_a_damaged_checkpoint_of_the_last_step_is_not_that_of_the_generation_that_trained_it_again(
    tmp_path: Path,
) -> None:
    """The parts arrive some time after every ps has made the step: the ps do not share the folder."""
    root = tmp_path / "checkpoints"
    damaged = save(root, 100)
    part = damaged.folder / damaged.parts[0].file
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    saved = save(root, 100, generation=2)
    (saved.folder / "manifest.json").unlink()
    before, after = ([shard_state(100, generation=2, phase=pb.COMPLETE) for _ in range(2)] for _ in range(2))
    ps = [Ps(before[shard], with_parts(after[shard], shard, saved)) for shard in range(2)]
    found = finisher_of(sample_context(tmp_path, ps, sample_job(deadlines=BRIEF))).commit_last(2)
    assert (found.step, found.generation) == (100, 2)


def test_dropped_gradients_are_those_that_were_pushed_and_not_used(tmp_path: Path) -> None:
    states = [shard_state(100), shard_state(100)]
    for state, used in zip(states, (8, 6), strict=True):
        state.pushed[:], state.used[:] = [10, 7], [used, 6]
        for index in range(2):
            state.workers.add(index=index)
    recorder = Recorder(
        tmp_path, sample_job(), sample_context(tmp_path).layout, None, Storage(Events(tmp_path, sample_job()), 1.0)
    )
    made = finisher_of(sample_context(tmp_path))
    made._recorder = recorder
    gradients = made.report(states, None, StoppedError(15)).gradients
    assert (gradients.pushed, gradients.used, gradients.dropped) == (17, 14, 3)
    assert [(ps.pushed, ps.used, ps.dropped) for ps in gradients.per_ps] == [(17, 14, 3), (17, 12, 5)]
    assert {index: (worker.pushed, worker.used) for index, worker in gradients.per_worker.items()} == {
        "0": (10, 8),
        "1": (7, 6),
    }


@pytest.mark.parametrize("instead", [None, pb.ShardState(run="run")])
@pytest.mark.parametrize("lost", [0, 1])
def test_the_counts_of_a_ps_that_was_lost_are_not_those_of_another_one(
    tmp_path: Path, lost: int, instead: pb.ShardState | None
) -> None:
    """Also if a new process without its shard answers instead."""
    states = [shard_state(100), shard_state(100)]
    for state, num_bytes in zip(states, (600, 400), strict=True):
        state.pushed[:], state.used[:], state.staleness[:] = [10, 7], [8, 6], [17]
        state.model_bytes, state.first_step = num_bytes, 40
        state.workers.add(index=0)
    made = finisher_of(sample_context(tmp_path))
    made._recorder = Recorder(
        tmp_path, sample_job(), sample_context(tmp_path).layout, None, Storage(Events(tmp_path, sample_job()), 1.0)
    )
    seen = [instead if shard == lost else state for shard, state in enumerate(states)]
    report = made.report(seen, None, LostPeerError(f"ps {lost} does not answer"))
    gradients, placement = report.gradients, report.placement
    assert [ps.pushed for ps in gradients.per_ps] == [0 if shard == lost else 17 for shard in range(2)]
    assert placement.ps == [0 if shard == lost else size for shard, size in enumerate((600, 400))]
    assert (placement.max_over_mean, gradients.since_step) == (1.0, 40)
    of_ps_0 = (gradients.pushed, gradients.used, gradients.dropped, set(gradients.per_worker), report.staleness)
    assert of_ps_0 == ((0, 0, 0, set(), {}) if lost == 0 else (17, 14, 3, {"0"}, {"0": 17}))


def counted(pushed: int, step: int, is_alive: bool = True) -> Any:
    """A ps at the last step, with the gradients and the step of its worker 1."""
    state = shard_state(100, phase=pb.COMPLETE)
    state.workers.add(index=0, step=100, is_alive=True)
    state.workers.add(index=1, step=step, is_alive=is_alive)
    state.pushed[:] = [100, pushed]
    return state


@pytest.mark.parametrize(
    ("states", "leave_secs", "pushed"),
    [
        pytest.param([counted(99, 99), counted(100, 99), counted(100, 100)], 20, 100, id="it ends its last step"),
        pytest.param([counted(99, 99), counted(99, 99, is_alive=False), counted(0, 0)], 20, 99, id="it has died"),
        pytest.param([counted(98, 99), counted(99, 99)], 0.1, 99, id="it stays longer than it may"),
    ],
)
def test_gradients_are_counted_once_every_live_worker_has_left_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[Any], leave_secs: float, pushed: int
) -> None:
    monkeypatch.setattr(run_finisher, "LEAVE_SECS", leave_secs)
    (found,) = finisher_of(sample_context(tmp_path, [Ps(*states)])).final_states(100)
    assert found is not None
    assert list(found.pushed) == [100, pushed]


@pytest.mark.parametrize(("wall", "expected"), [(1010.0, 10 + 5), (400.0, 5)], ids=["as it was", "set back"])
def test_the_duration_of_a_run_does_not_depend_on_a_clock_that_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wall: float, expected: float
) -> None:
    """The attempt started at 1000; this chief replaces another, and 5 s later the clock is set to 0."""
    clock = SimpleNamespace(time=lambda: wall, monotonic=lambda: 7.0)
    monkeypatch.setattr(run_finisher, "time", clock)
    context = sample_context(tmp_path, [])
    made = finisher_of(context, started=1000.0)
    clock.time, clock.monotonic = lambda: 0.0, lambda: 12.0
    assert made._seconds() == expected


def full_disk(step: int = 100, folder: str = "/checkpoints") -> Any:
    """A ps at the final step whose part the disk refuses, and which tries again."""
    state = shard_state(step)
    state.parts.add(step=step, error=f"{folder}: No space left on device")
    return state


def test_the_last_part_may_wait_for_space_on_the_disk(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "checkpoints", 100)
    (checkpoint.folder / "manifest.json").unlink()
    done = [with_parts(shard_state(100, phase=pb.COMPLETE), shard, checkpoint) for shard in range(2)]
    ps = [Ps(done[0]), Ps(full_disk(), full_disk(), done[1])]
    last = finisher_of(sample_context(tmp_path, ps, sample_job(deadlines=BRIEF)))
    assert last.commit_last(1).step == 100
    assert [(event.role, event.index, event.kind) for event in last._events.all()] == [("ps", 1, "checkpoint_failed")]


def test_the_last_manifest_may_wait_for_space_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, attempts = manifest.write_manifest, iter(range(9))

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if next(attempts) < 2:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(checkpoints, "write_manifest", refuse)
    assert finisher(tmp_path, BRIEF, num_waits=0).commit_last(1).step == 100
    assert next(attempts) == 3


@pytest.mark.parametrize("folder", ["/checkpoints", "/NaN/checkpoints"])
def test_a_disk_that_stays_full_ends_the_run_with_75_and_the_cause(tmp_path: Path, folder: str) -> None:
    deadlines = BRIEF | {"stall_secs": 0.2}
    ps = [Ps(full_disk(folder=folder)), Ps(full_disk(folder=folder))]
    context = sample_context(tmp_path, ps, sample_job(deadlines=deadlines))
    with pytest.raises(StorageError, match=f"for 0.2 s: {folder}: No space left on device") as caught:
        finisher_of(context).commit_last(1)
    assert caught.value.exit_code == 75


def test_the_report_of_a_run_that_was_stopped_before_it_trained_names_the_checkpoint_that_is_there(
    tmp_path: Path,
) -> None:
    saved = save(tmp_path / "checkpoints", 40)
    context = sample_context(tmp_path)
    storage = Storage(Events(tmp_path, context.job), 1.0)
    committer = CheckpointCommitter(context, {}, storage)
    states = [shard_state(40), shard_state(40)]
    committer.update(states)
    recorder = Recorder(tmp_path, context.job, context.layout, None, storage)
    made = RunFinisher(context, recorder, committer, storage, Attempt(tmp_path, 0.0, ""))
    report = made.report(states, None, StoppedError(15))
    assert (report.status, report.exit_code, report.error) == ("stopped", 128 + 15, "stopped by SIGTERM")
    assert report.checkpoint is not None
    assert (report.checkpoint.step, report.checkpoint.path) == (40, str(saved.folder))
    assert report.final_step == 40
