"""What evaluations decide, over the chiefs and runs of a folder: the best checkpoint, and the end of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import random_values, sample_layout, save
from support.chief_samples import Ps, sample_context, sample_job, sample_storage, shard_state, with_parts

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, StoppedError
from psfleet.job.job import Job
from psfleet.report.schema import Evaluation, EvaluationLog
from worker_service.chief import monitor
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.chief import Chief
from worker_service.chief.events import Events
from worker_service.chief.monitor import Monitor
from worker_service.chief.recorder import Recorder
from worker_service.chief.recovery import Recovery

EMPTY = pb.ShardState(run="run", phase=pb.EMPTY, cause="killed by SIGKILL")


def job(keep: int = 1, steps: int = 100, **stop: Any) -> Job:
    """Evaluates every 20 steps; ends after 2 evaluations without an improvement."""
    watched = {"metric": "accuracy", "patience": 2} | stop
    return sample_job(
        evaluate={"every_steps": 20, "stop": watched},
        checkpoint={"every_steps": 10, "keep": keep, "best": {"metric": "accuracy"}},
        train={"steps": steps, "batch_size": 8},
    )


class Run:
    """One chief process on the folder of a run."""

    def __init__(self, out: Path, the_job: Job | None = None, stops: bool = False) -> None:
        self.out, self.job = out, the_job or job()
        self.ps = [Ps(shard_state(0)), Ps(shard_state(0))]
        self.context = sample_context(out, self.ps, self.job, stops=stops)
        storage = sample_storage(self.context)
        self.events = storage.events
        self.monitor = Monitor(out, self.job, storage)
        self.committer = CheckpointCommitter(self.context, {}, storage, self.monitor)
        self.recorder = Recorder(out, self.job, sample_layout(), None, storage, self.monitor)

    def commit(self, *steps: int, now: int | None = None) -> None:
        """The parts of checkpoints are seen with one heartbeat."""
        states = [shard_state(now or steps[-1] + 1) for _ in range(2)]
        for step in steps:
            saved = save(self.out / "checkpoints", step)
            (saved.folder / "manifest.json").unlink()
            for shard, state in enumerate(states):
                with_parts(state, shard, saved).slots[:] = saved.slots
        self.committer.update(states)

    def evaluate(self, **accuracies: float) -> None:
        """Evaluates steps, by names s20, s40 and so on."""
        for name, value in accuracies.items():
            metrics = {"loss": 0.5, "accuracy": value}
            self.monitor.evaluated(
                Evaluation(time=0, step=int(name.removeprefix("s")), generation=1, secs=0.1, metrics=metrics)
            )

    def folders(self) -> list[int]:
        """The steps of the checkpoints in the folder."""
        return sorted(int(path.name.partition("-")[0]) for path in (self.out / "checkpoints").iterdir())

    def best(self) -> tuple[int, float] | None:
        best = self.monitor.best
        return None if best is None else (best.step, best.value)


def test_the_best_checkpoint_is_kept_beyond_the_newest(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step, value in ((20, 0.5), (40, 0.75), (60, 0.625)):
        run.commit(step - 10, step)
        run.evaluate(**{f"s{step}": value})
    run.commit(70)
    assert run.folders() == [40, 70]
    assert run.best() == (40, 0.75)
    run.commit(80)
    run.evaluate(s80=0.875)
    run.commit(90)
    assert run.folders() == [80, 90]


def test_a_checkpoint_is_kept_until_it_is_evaluated(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit(10, 20, 30, 40, 50)
    assert run.folders() == [20, 40, 50]
    assert [checkpoint.step for checkpoint in run.monitor.take_due()] == [20, 40]
    assert run.monitor.take_due() == []
    run.monitor.skipped(20)
    run.commit(60)
    assert run.folders() == [40, 60]


def test_the_evaluated_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Not the chief's own, which may be of another step, and in async mode of no step of the ps at all."""
    found: list[dict[str, np.ndarray]] = []

    def evaluate(values: Mapping[str, np.ndarray]) -> dict[str, float]:
        found.append(dict(values))
        return {"accuracy": 0.5}

    run = Run(tmp_path)
    run.recorder._evaluation._evaluator = SimpleNamespace(evaluate=evaluate)
    run.recorder.start(0)
    run.commit(20)
    session: Any = SimpleNamespace(summaries=lambda batch: None)
    run.recorder.step(session, (), 27, loss=1.0, secs=0.1)
    assert run.recorder.finish_evaluation(lambda: False)
    [tensors] = found
    assert {name: value.tobytes() for name, value in tensors.items()} == {
        name: value.tobytes() for name, value in random_values(1).items()
    }
    assert run.best() == (20, 0.5)


def test_a_checkpoint_that_cannot_be_read_does_not_end_training(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.recorder._evaluation._evaluator = SimpleNamespace(evaluate=lambda values: pytest.fail("evaluated"))
    run.recorder.start(0)
    run.commit(20)
    next((tmp_path / "checkpoints").glob("*20-g1/*.safetensors")).unlink()
    run.recorder._evaluation.begin_checkpoints()
    assert run.recorder.finish_evaluation(lambda: False)
    run.recorder._evaluation.evaluations.check()
    assert [event.kind for event in run.events.all()] == ["evaluation_skipped"]
    assert run.monitor.protected() == set()


def test_a_chief_that_replaces_another_has_the_same_best_and_evaluates_what_that_one_had_not(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit(20, 40)
    run.evaluate(s20=0.75)
    successor = Run(tmp_path)
    assert successor.best() == (20, 0.75)
    assert [checkpoint.step for checkpoint in successor.monitor.take_due()] == [40]
    successor.commit(50)
    assert successor.folders() == [20, 40, 50]


def test_a_checkpoint_whose_evaluation_was_skipped_is_not_evaluated_after_newer_ones(tmp_path: Path) -> None:
    """The curve of evaluations would go back, and lose the newer ones."""
    run = Run(tmp_path, job(keep=5))
    run.commit(20, 40, 60, 80)
    run.evaluate(s20=0.5)
    run.monitor.skipped(40)
    run.evaluate(s60=0.625)
    assert [checkpoint.step for checkpoint in Run(tmp_path, job(keep=5)).monitor.take_due()] == [80]


def test_a_chief_that_begins_no_evaluations_does_not_keep_all_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads old batches after a restart, while the fleet trains."""
    monkeypatch.setattr(monitor, "MAX_DUE", 2)
    run = Run(tmp_path)
    run.commit(20, 40)
    run.commit(60)
    run.commit(80)
    assert run.folders() == [60, 80]
    assert [event.kind for event in run.events.all()] == ["evaluation_skipped"]
    assert [checkpoint.step for checkpoint in run.monitor.take_due()] == [60, 80]


def test_the_metrics_of_a_step_that_was_trained_again_are_those_of_its_newest_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for generation in (1, 2):
        run.monitor.committed(save(tmp_path / "checkpoints", 20, generation=generation))
    assert [checkpoint.generation for checkpoint in run.monitor.take_due()] == [2]
    assert run.monitor.generation_of(20, 9) == 2
    run.evaluate(s20=0.5)
    assert run.monitor.best is not None
    assert run.monitor.best.path.endswith("00000020-g2")


def test_a_checkpoint_that_is_evaluated_again_has_its_newest_value(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit(60)
    run.evaluate(s60=0.75)
    again = Run(tmp_path)
    again.monitor.begin_last(save(tmp_path / "checkpoints", 60))
    again.evaluate(s60=0.625)
    assert again.best() == (60, 0.625)


def test_a_decision_is_an_event_of_the_run_and_is_not_forgotten_by_the_next_chief(tmp_path: Path) -> None:
    reason = "accuracy has not improved in the last 2 evaluations: 0.75 at step 20, then 0.625 at step 60"
    run = Run(tmp_path)
    run.evaluate(s20=0.75, s40=0.5, s60=0.625)
    assert [(event.kind, event.cause) for event in run.events.all()] == [("early_stop", reason)]
    run.evaluate(s80=0.9)
    successor = Run(tmp_path)
    successor.monitor.announce()
    assert len(successor.events.all()) == 1
    assert successor.monitor.decision == run.monitor.decision
    assert successor.monitor.final_step == 60
    successor.commit(70, now=71)
    assert successor.ps[0].scheduled == successor.ps[1].scheduled == [(72, True)]
    assert EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).curve()[-1].step == 80


def test_after_a_rollback_training_ends_no_earlier_than_the_evaluation_that_decided(tmp_path: Path) -> None:
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    run = Run(tmp_path)
    for now in (11, 12, 13):
        run.committer.update([shard_state(now, generation=2)] * 2)
    assert run.ps[0].scheduled == [(60, True)]


def test_a_signal_does_not_wait_for_the_step_of_an_early_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    run = Run(tmp_path)
    run.committer.update([shard_state(11)] * 2)
    monkeypatch.setattr(run.context.stop, "must_save", lambda: True)
    for now in (12, 13, 14):
        run.committer.update([shard_state(now)] * 2)
    [(first, _), (second, _)] = run.ps[0].scheduled
    assert first == 60
    assert 12 < second < 60


@pytest.mark.parametrize(
    ("steps", "stop", "is_over"),
    [(100, {}, True), (1000, {}, True), (1000, {"patience": 9}, False)],
    ids=["as it was", "train.steps raised", "evaluate.stop changed"],
)
def test_a_run_that_was_stopped_early_ends_at_once_when_it_resumes(
    tmp_path: Path, steps: int, stop: dict[str, Any], is_over: bool
) -> None:
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    save(tmp_path / "checkpoints", 63)
    run = Run(tmp_path, job(steps=steps, **stop))
    result = Recovery(run.context, lambda: random_values(1), {}, run.events, run.monitor).recover([EMPTY, EMPTY], 0)
    assert (result.finished is not None) == is_over


def test_a_checkpoint_before_the_decision_is_not_the_end_of_a_run(tmp_path: Path) -> None:
    """All processes died before the last checkpoint: steps that were evaluated are trained again."""
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    save(tmp_path / "checkpoints", 59)
    run = Run(tmp_path)
    result = Recovery(run.context, lambda: random_values(1), {}, run.events, run.monitor).recover([EMPTY, EMPTY], 0)
    assert result.finished is None


@pytest.mark.parametrize(("step", "exit_code"), [(63, 0), (59, 143)])
def test_a_run_that_ends_at_the_decision_is_done_and_before_it_stopped(
    tmp_path: Path, step: int, exit_code: int
) -> None:
    run = Run(tmp_path)
    run.evaluate(s20=0.75, s40=0.5, s60=0.625)
    outcomes: list[pb.Outcome] = []
    run.context.fleet.finish = outcomes.append
    chief: Any = SimpleNamespace(
        _context=run.context, error=None, _heartbeat=SimpleNamespace(finish=lambda outcome: None),
        _components=SimpleNamespace(recorder=run.recorder),
    )  # fmt: skip
    Chief._end(chief, save(tmp_path / "checkpoints", step), [])
    assert [outcome.exit_code for outcome in outcomes] == [exit_code]
    assert isinstance(chief.error, StoppedError) == bool(exit_code)


def test_an_unknown_metric_is_a_bad_job(tmp_path: Path) -> None:
    run = Run(tmp_path, job(metric="acc"))
    with pytest.raises(BadJobError, match=r"evaluate\.stop\.metric is 'acc', .*: accuracy, loss$"):
        run.evaluate(s20=0.5)


def test_evaluations_that_a_full_disk_refuses_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    append = EvaluationLog.append

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EvaluationLog, "append", refuse)
    run.evaluate(s20=0.75, s40=0.5, s60=0.625)
    # A chief that replaced this one would not know of a decision: its run would end as stopped.
    assert run.monitor.final_step == Run(tmp_path).monitor.final_step == 100
    monkeypatch.setattr(EvaluationLog, "append", append)
    run.evaluate(s80=0.5)
    assert run.monitor.final_step == Run(tmp_path).monitor.final_step == 60
    assert Events(tmp_path, run.job).all()[0].kind == "write_failed"
