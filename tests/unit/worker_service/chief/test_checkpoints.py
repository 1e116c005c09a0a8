"""At which step the chief schedules a stop, and which checkpoints it commits."""

from __future__ import annotations

import time
from pathlib import Path
from signal import SIGINT

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, sample_storage, shard_state, with_parts

from psfleet.checkpoint import manifest, store
from psfleet.control import control_pb2 as pb
from worker_service.chief import checkpoints
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.events import Events
from worker_service.chief.storage import Storage


def stop_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *beats: tuple[float, int]) -> int:
    """The step of the stop that a chief schedules at the last of its heartbeats, given as (seconds, step)."""
    now = 0.0
    stops = False
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ps = [Ps(shard_state(0)), Ps(shard_state(0))]
    context = sample_context(tmp_path, ps)
    monkeypatch.setattr(context.stop, "must_save", lambda: stops)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    for number, (secs, step) in enumerate(beats, 1):
        now, stops = secs, number == len(beats)
        committer.update([shard_state(step), shard_state(step)])
    assert ps[0].scheduled == ps[1].scheduled
    [(step, _)] = ps[0].scheduled
    return step


@pytest.mark.parametrize(
    ("beats", "ahead"),
    [
        pytest.param([(30.0, 50_000)], 1, id="right after a resume at step 50,000"),
        pytest.param([(30.0, 50_000), (31.0, 50_020)], 1 + 10, id="by the rate of the last second, 20 steps"),
        pytest.param([(1.0, 1000), (2.0, 2000), (300.0, 2000), (301.0, 2004)], 1 + 2, id="after a pause"),
        pytest.param([(10.0, 7), (11.0, 7)], 1, id="steps of 10 s: the one in progress"),
    ],
)
def test_a_stop_is_planned_by_the_present_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: list[tuple[float, int]], ahead: int
) -> None:
    assert stop_step(tmp_path, monkeypatch, *beats) == beats[-1][1] + ahead


@pytest.mark.parametrize(("second", "is_moved"), [(47, False), (100, True)], ids=["on every ps", "on one ps"])
def test_a_chief_does_not_move_the_stop_that_the_one_before_has_scheduled(
    tmp_path: Path, second: int, is_moved: bool
) -> None:
    """The fleet has made its last step: its workers wait for the end of the run, and would make no further one."""
    ps = [Ps(shard_state(0)), Ps(shard_state(0))]
    context = sample_context(tmp_path, ps, stops=True)
    states = [shard_state(47, phase=pb.COMPLETE), shard_state(47, phase=pb.COMPLETE)]
    states[0].final_step, states[1].final_step = 47, second
    CheckpointCommitter(context, {}, sample_storage(context)).update(states)
    assert [len(one.scheduled) for one in ps] == [is_moved, is_moved]


def test_a_chief_completes_the_stop_that_the_one_before_has_scheduled_on_one_ps(tmp_path: Path) -> None:
    """It was killed between its requests. In async mode that ps takes no further gradient."""
    ps = [Ps(shard_state(0)), Ps(shard_state(0))]
    context = sample_context(tmp_path, ps)
    states = [shard_state(47, phase=pb.COMPLETE), shard_state(60)]
    states[0].final_step = 47
    CheckpointCommitter(context, {}, sample_storage(context)).update(states)
    assert [one.scheduled for one in ps] == [[(61, True)]] * 2


def test_a_stop_that_is_completed_keeps_its_signal_although_this_chief_leaves_by_another(tmp_path: Path) -> None:
    """Its SIGTERM only replaces it; the run was stopped by Ctrl-C."""
    ps = [Ps(shard_state(0)), Ps(shard_state(0))]
    context = sample_context(tmp_path, ps)
    states = [shard_state(60), shard_state(60)]
    states[0].final_step, states[0].stop_signal = 70, SIGINT
    CheckpointCommitter(context, {}, sample_storage(context)).update(states)
    assert [one.signals for one in ps] == [[SIGINT]] * 2


def test_a_checkpoint_is_committed_although_old_ones_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    def read(*_: object) -> None:
        raise AssertionError("the contents of a checkpoint take minutes to read")

    monkeypatch.setattr(checkpoints, "prune", refuse)
    monkeypatch.setattr(store, "verify", read)
    saved = save(tmp_path / "checkpoints", 40)
    (saved.folder / "manifest.json").unlink()
    context = sample_context(tmp_path)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    committer.update([with_parts(shard_state(41), shard, saved) for shard in range(2)])
    assert committer.newest is not None
    assert committer.newest.step == 40
    assert [message for message in caplog.messages if "checkpoint" in message] == [
        "chief 0 prune_failed: the deletion of old checkpoints: Permission denied"
    ]


def test_a_manifest_that_the_disk_refuses_is_an_event_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, written = save(tmp_path / "checkpoints", 40), manifest.write_manifest
    (saved.folder / "manifest.json").unlink()
    context = sample_context(tmp_path)
    events = Events(tmp_path, context.job)
    committer = CheckpointCommitter(context, {}, Storage(events, 1.0))
    states = [with_parts(shard_state(41), shard, saved) for shard in range(2)]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_manifest", refuse)
    for _ in range(3):
        committer.update(states)
    assert committer.newest is None
    assert [(event.kind, event.cause) for event in events.all()] == [
        ("checkpoint_failed", "the manifest of a checkpoint: No space left on device")
    ]
    monkeypatch.setattr(checkpoints, "write_manifest", written)
    committer.update(states)
    assert committer.newest is not None
    assert committer.newest.step == 40


def test_a_part_that_a_ps_cannot_write_is_an_event_of_that_ps_at_once(tmp_path: Path) -> None:
    saved = save(tmp_path / "checkpoints", 40)
    context = sample_context(tmp_path)
    events = Events(tmp_path, context.job)
    committer = CheckpointCommitter(context, {}, Storage(events, 1.0))
    state = shard_state(41)
    for step in (20, 30):
        state.parts.add(step=step, error="/checkpoints: No space left on device")
        committer.update([with_parts(shard_state(41), 0, saved), state])
    assert committer.cause == "/checkpoints: No space left on device"
    committer.update([with_parts(shard_state(41), 0, saved), with_parts(state, 1, saved)])
    assert committer.cause == ""
    assert [(event.role, event.index, event.kind, event.cause) for event in events.all()] == [
        ("ps", 1, "checkpoint_failed", "/checkpoints: No space left on device")
    ]


def test_a_checkpoint_with_new_weights_is_not_replaced_by_the_one_that_it_was_made_of(tmp_path: Path) -> None:
    """The fleet trains the generation before until it starts from the new weights; its parts are of the same step."""
    root = tmp_path / "checkpoints"
    base, made = save(root, 40, generation=1), save(root, 40, generation=2)
    context = sample_context(tmp_path)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    committer.adopt(made)
    committer.update([with_parts(shard_state(40), shard, base) for shard in range(2)])
    assert committer.newest == made


def test_after_a_rollback_behind_a_damaged_checkpoint_those_of_the_new_generation_are_committed(tmp_path: Path) -> None:
    """The damaged one has a later step, and its manifest is valid."""
    root = tmp_path / "checkpoints"
    save(root, 50, generation=1)
    saved = save(root, 45, generation=2)
    (saved.folder / "manifest.json").unlink()
    context = sample_context(tmp_path)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    committer.update([with_parts(shard_state(46, generation=2), shard, saved) for shard in range(2)])
    assert committer.newest is not None
    assert (committer.newest.step, committer.newest.generation) == (45, 2)
