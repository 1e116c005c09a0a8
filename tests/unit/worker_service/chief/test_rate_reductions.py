"""The learning rate is reduced from the same step on at every ps, whatever is lost meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, shard_state
from support.reducing_fleet import JOB, NUM_PS, STEPS, DeadChiefError, Run

from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError, ReplacedError
from psfleet.report.reductions import ReductionLog
from worker_service.chief.recovery import Recovery


def test_a_reduction_applies_from_a_step_ahead_on_every_ps(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for shard, step in zip(run.shards, (20, 21, 20), strict=True):
        shard.advance(step)
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    run.beat()
    for shard in run.shards:
        shard.advance(60)
    assert run.recorded() == run.monitor.reductions.steps == [23]
    assert [shard.step for shard in run.shards] == [60] * NUM_PS
    run.check()
    [event] = run.storage.events.all()
    assert (event.kind, event.cause) == (
        "learning_rate_reduced",
        "from 0.5 to 0.25 from step 23 on, by the evaluation at step 20",
    )
    run.beat()
    assert run.recorded() == [23], "one evaluation reduces once"


@pytest.mark.parametrize("seed", range(40))
def test_all_ps_make_each_update_with_the_same_rate_whoever_dies_when(tmp_path: Path, seed: int) -> None:
    """Chiefs die before or after any of their calls, calls are lost, and ps make any number of updates meanwhile."""
    chance = random.Random(seed)
    run = Run(tmp_path, chance)
    for step in range(10, 300, 10):
        run.evaluate(step, 1 / step)
        for shard in run.shards:
            failure = chance.choice([None, None, LostPeerError("no answer"), DeadChiefError()])
            shard.failures = {} if failure is None else {chance.randint(0, 4): failure}
        try:
            run.beat()
        except DeadChiefError:
            run.start_chief()
        for shard in run.shards:
            shard.advance(step)
    for shard in run.shards:
        shard.failures, shard.chance = {}, None
    run.beat()
    end = 100 + max(shard.step for shard in run.shards)
    for shard in run.shards:
        shard.advance(end)
    assert [shard.step for shard in run.shards] == [end] * NUM_PS, "a ps pauses for ever"
    assert run.recorded(), "nothing was reduced"
    run.check()


def test_after_a_rollback_the_rate_changes_at_the_same_steps(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    run.beat()
    save(tmp_path / "checkpoints", 1)
    ps = [Ps(shard_state(30)), Ps(pb.ShardState(run="run", phase=pb.EMPTY))]
    context = sample_context(tmp_path, ps, JOB)
    recovery = Recovery(context, dict, {}, run.storage.events, run.monitor)
    recovery.recover([one.describe() for one in ps], 30)
    assert [one.reductions for one in ps] == [run.recorded()] * 2 == [[20], [20]]


def test_a_reduction_that_a_rollback_undid_before_it_was_made_waits_for_its_evaluation(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.evaluate(10, 0.5)
    run.evaluate(500, 0.4)
    run.beat()
    assert run.recorded() == [500]


def test_a_reduction_that_the_disk_refuses_is_not_made_and_no_ps_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = Run(tmp_path)
    run.beat()
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    with monkeypatch.context() as full:
        full.setattr(ReductionLog, "append", refuse)
        run.beat()
    for shard in run.shards:
        shard.advance(50)
    assert (run.recorded(), run.monitor.reductions.steps) == ([], [])
    assert [shard.step for shard in run.shards] == [50] * NUM_PS
    run.beat()
    assert run.recorded() == [52]
    assert [event.kind for event in run.storage.events.all()] == ["write_failed", "learning_rate_reduced"]


def test_after_an_error_between_proposal_and_record_no_ps_stays_in_its_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.beat()
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    with monkeypatch.context() as broken:
        broken.setattr(ReductionLog, "append", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run.beat()
    for shard in run.shards:
        shard.advance(60)
    assert [shard.step for shard in run.shards] == [20] * NUM_PS
    run.evaluate(30, 0.6)
    run.beat()
    for shard in run.shards:
        shard.advance(60)
    assert [shard.step for shard in run.shards] == [60] * NUM_PS
    run.check()


@pytest.mark.parametrize("final_step", [STEPS, STEPS // 2])
def test_no_reduction_is_made_at_the_final_step(tmp_path: Path, final_step: int) -> None:
    """A stop by a signal or an evaluation makes an earlier step the final one."""
    run = Run(tmp_path)
    for shard in run.shards:
        shard.final_step = final_step
        shard.advance(final_step - 2)
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    run.beat()
    for shard in run.shards:
        shard.advance(final_step)
    assert run.recorded() == []
    assert [shard.step for shard in run.shards] == [final_step] * NUM_PS


def test_a_fleet_that_is_not_complete_reduces_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    states = [shard_state(20), shard_state(20, generation=2), None]
    shards: Any = run.shards
    for lost in (states, states[:2]):
        run.monitor.reductions.update(lost, shards)
    assert run.recorded() == []


def made_by_the_next_chief(run: Run, num_beats: int) -> None:
    """A chief replaces the one that is frozen; before each of its heartbeats the fleet makes updates."""
    run.start_chief()
    for _ in range(num_beats):
        for shard in run.shards:
            shard.advance(shard.step + 7)
        run.beat()
    for shard in run.shards:
        shard.advance(shard.step + 7)


@pytest.mark.parametrize("num_beats", [0, 1, 2])
@pytest.mark.parametrize("writes_first", [False, True])
def test_a_reduction_of_a_chief_that_is_frozen_before_its_line_is_made_by_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_beats: int, writes_first: bool
) -> None:
    """If the line is there when the successor takes over, at that step; or else the line does not count."""
    run = Run(tmp_path)
    run.beat()
    frozen = run.monitor
    for shard in run.shards:
        shard.advance(20)
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    append = ReductionLog.append

    def freeze(log: ReductionLog, line: Any) -> None:
        monkeypatch.setattr(ReductionLog, "append", append)
        if writes_first:
            append(log, line)
        made_by_the_next_chief(run, num_beats)
        if not writes_first:
            append(log, line)

    monkeypatch.setattr(ReductionLog, "append", freeze)
    with pytest.raises(ReplacedError):
        run.beat()
    assert run.monitor is not frozen
    agreed = frozen.reductions.steps
    for number in range(2):
        run.beat()
        for shard in run.shards:
            shard.advance(100 * (number + 1))
    assert [shard.step for shard in run.shards] == [200] * NUM_PS, "a ps pauses for ever"
    assert len(run.recorded()) == 1
    assert (run.recorded() == agreed) == (writes_first or num_beats == 0)
    run.check()
    run.start_chief()
    run.beat()
    assert run.monitor.reductions.steps == run.recorded(), "the next chief has another record"


def test_a_chief_that_was_replaced_and_takes_the_log_over_displaces_no_other(tmp_path: Path) -> None:
    """It was frozen before; the ps refuse all its calls."""
    run = Run(tmp_path)
    run.beat()
    ReductionLog(tmp_path / ReductionLog.FILE_NAME).take_over()
    run.evaluate(10, 0.5)
    run.evaluate(20, 0.4)
    for _ in range(3):
        run.beat()
    assert run.recorded() == run.monitor.reductions.steps
    assert len(run.recorded()) == 1
    for shard in run.shards:
        shard.advance(100)
    run.check()
