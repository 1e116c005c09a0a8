"""The learning rate is reduced from the same step on at every ps, whatever is lost meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, sample_job, sample_storage, shard_state

from ps_service import rate_reductions
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.report.reductions import ReductionLog
from psfleet.report.schema import Evaluation
from worker_service.chief.monitor import Monitor
from worker_service.chief.recovery import Recovery

NUM_PS = 3
STEPS = 1000
SCHEDULE = {"kind": "plateau", "metric": "accuracy", "patience": 1, "factor": 0.5, "min_delta": 0}
JOB = sample_job(
    fleet={"ps": NUM_PS, "workers": 2},
    train={"steps": STEPS, "batch_size": 8},
    evaluate={"every_steps": 10},
    optimizer={"name": "sgd", "learning_rate": 0.5, "schedule": SCHEDULE},
)


class DeadChiefError(Exception):
    """The chief is killed at this moment."""


class Shard:
    """One ps as the chief calls it: its updates, by the number of reductions that each was made with.

    Attributes:
        final_step: That of the job, or of a stop.
        updates: By the step before each update.
        failures: Raised by calls, by the number of calls that are made before.
        chance: Decides how many updates are made around each call.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.step, self.calls, self.updates = 0, 0, dict[int, int]()
        self.final_step = STEPS
        self.failures: dict[int, Exception] = {}
        self.chance = chance
        self.reductions = rate_reductions.RateReductions()

    def schedule_reductions(
        self, generation: int, reductions: Sequence[int], pause_at: int | None = None
    ) -> pb.ScheduleReductionsReply:
        """See PsClient."""
        del generation
        self._advance_by_chance()
        failure = self.failures.pop(0, None)
        self.failures = {calls - 1: error for calls, error in self.failures.items()}
        if failure is not None:
            raise failure
        self.calls += 1
        accepted = self.reductions.schedule(reductions, pause_at, (1, self.calls), self.step)
        reply = pb.ScheduleReductionsReply(accepted=accepted, step=self.step)
        self._advance_by_chance()
        return reply

    def advance(self, step: int) -> None:
        """Makes updates up to a step, or up to one at which it pauses."""
        while self.step < step and self.reductions._pause_at != self.step:
            self.updates[self.step] = self.reductions.await_number(self.step)
            self.step += 1

    def state(self) -> Any:
        return shard_state(self.step, final_step=self.final_step)

    def _advance_by_chance(self) -> None:
        if self.chance is not None:
            self.advance(self.step + self.chance.choice([0, 0, 1, 2, 5, 40]))


class Run:
    """The folder of a run with its ps; its chiefs come and go."""

    def __init__(self, out: Path, chance: random.Random | None = None) -> None:
        self.out, self.shards = out, [Shard(chance) for _ in range(NUM_PS)]
        self.start_chief()

    def start_chief(self) -> None:
        self.context = sample_context(self.out, [], JOB)
        self.storage = sample_storage(self.context)
        self.monitor = Monitor(self.out, JOB, self.storage)

    def evaluate(self, step: int, accuracy: float) -> None:
        metrics = {"accuracy": accuracy}
        self.monitor.evaluated(Evaluation(time=0, step=step, generation=1, secs=0.1, metrics=metrics))

    def beat(self) -> None:
        """A heartbeat of the chief."""
        shards: Any = self.shards
        self.monitor.reductions.update([shard.state() for shard in self.shards], shards)

    def recorded(self) -> list[int]:
        return [each.step for each in ReductionLog(self.out / ReductionLog.FILE_NAME).made()]

    def check(self) -> None:
        """Every ps made each of its updates with the recorded number of reductions."""
        steps = self.recorded()
        for shard in self.shards:
            assert shard.updates == {step: sum(each <= step for each in steps) for step in range(shard.step)}


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
