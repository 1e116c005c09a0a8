"""What evaluations decide, over the chiefs and runs of a folder: which checkpoint is the best and is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import random_values, save
from support.chief_samples import sample_job
from support.monitored_run import Run, job

from psfleet.checkpoint import evaluated
from psfleet.checkpoint.export import find_best
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import BadJobError, ProgramError, StoppedError
from psfleet.report.schema import EvaluationLog
from psfleet.run_folder import STARTED
from worker_service.chief import monitor
from worker_service.chief.events import Events


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

    def evaluate(values: Mapping[str, np.ndarray], global_step: int) -> dict[str, float]:
        found.append(dict(values))
        assert global_step == 20
        return {"accuracy": 0.5}

    run = Run(tmp_path)
    run.recorder._evaluation._evaluator = SimpleNamespace(evaluate=evaluate, has_data=True)
    run.recorder.start(0)
    run.commit(20)
    session: Any = SimpleNamespace(summaries=lambda batch: None, gradient_norm=lambda: None, measure_norm=bool)
    run.recorder.step(session, (), 27, loss=1.0, secs=0.1)
    assert run.recorder.finish_evaluation(lambda: False)
    [tensors] = found
    assert {name: value.tobytes() for name, value in tensors.items()} == {
        name: value.tobytes() for name, value in random_values(1).items()
    }
    assert run.best() == (20, 0.5)


def test_a_checkpoint_that_cannot_be_read_does_not_end_training(tmp_path: Path) -> None:
    run = Run(tmp_path)
    evaluate = partial(pytest.fail, "evaluated")
    run.recorder._evaluation._evaluator = SimpleNamespace(evaluate=evaluate, has_data=True)
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


@pytest.mark.parametrize("has_data", [False, True])
def test_a_program_without_metrics_does_not_keep_all_checkpoints(tmp_path: Path, has_data: bool) -> None:
    """With embedding tables each evaluation is one of a checkpoint, also of a program that has no `evaluate`."""

    def evaluate(values: Mapping[str, np.ndarray], global_step: int) -> dict[str, float]:
        assert has_data, "a checkpoint is read in vain"
        return {}

    tables = {"user": {"rows": 100}}
    run = Run(tmp_path, sample_job(tables=tables, evaluate={"every_steps": 20}, checkpoint={"keep": 1}))
    run.recorder._evaluation._evaluator = SimpleNamespace(evaluate=evaluate, has_data=has_data)
    run.recorder.start(0)
    for step in (20, 40, 60):
        run.commit(step)
        run.recorder._evaluation.begin_checkpoints()
        assert run.recorder.finish_evaluation(lambda: False)
        assert run.monitor.protected() == set()
    run.commit(70)
    assert run.folders() == [70]


def test_checkpoints_that_waited_for_an_evaluation_at_the_end_of_a_run_are_pruned(tmp_path: Path) -> None:
    """A short run with embedding tables ends before the chief has begun to evaluate."""
    tables = {"user": {"rows": 100}}
    run = Run(tmp_path, sample_job(tables=tables, evaluate={"every_steps": 20}, checkpoint={"keep": 1}))
    run.commit(20, 40, 100)
    assert run.folders() == [20, 40, 100]
    newest = run.committer.newest
    assert newest is not None
    run.report(newest)
    assert run.folders() == [100]


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


def test_an_unknown_metric_is_a_bad_job(tmp_path: Path) -> None:
    run = Run(tmp_path, job(metric="acc"))
    with pytest.raises(BadJobError, match=r"evaluate\.stop\.metric is 'acc', .*: accuracy, loss$"):
        run.evaluate(s20=0.5)


def end_of_replaced(run: Run, checkpoint: Checkpoint) -> None:
    """The report of a stop, by a chief that has been replaced."""
    (run.out / STARTED).write_text(json.dumps({"name": "", "time": 0.0, "chief": "newer"}))
    run.finisher._attempt = replace(run.finisher._attempt, chief="older")
    run.report(checkpoint, StoppedError(15))


@pytest.mark.parametrize(
    ("end", "is_stored"),
    [
        pytest.param(lambda run, checkpoint: run.evaluate(s40=0.5), True, id="with the next evaluation"),
        pytest.param(lambda run, checkpoint: run.report(checkpoint), True, id="at the end of the run"),
        pytest.param(lambda run, checkpoint: run.report(checkpoint, StoppedError(15)), True, id="at a stop"),
        pytest.param(lambda run, checkpoint: run.report(checkpoint, ProgramError("bad")), True, id="at an error"),
        pytest.param(end_of_replaced, False, id="not by a chief that has been replaced"),
    ],
)
def test_metrics_of_the_best_checkpoint_that_a_full_disk_refuses_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Run, Checkpoint], object], is_stored: bool
) -> None:
    """By them an export and the next chief know the best checkpoint."""
    watching = job(keep=5)
    run, root = Run(tmp_path, watching), tmp_path / "checkpoints"
    first, second = (save(root, step, extra={"job": watching.model_dump(mode="json")}) for step in (20, 40))
    write, refusals = evaluated.write, [OSError(28, "No space left on device")]

    def refuse_once(*found: Any) -> None:
        if refusals:
            raise refusals.pop()
        write(*found)

    monkeypatch.setattr(evaluated, "write", refuse_once)
    run.monitor.committed(first)
    run.evaluate(s20=0.75)
    run.monitor.committed(second)
    end(run, second)
    assert run.kinds() == ["write_failed"]
    assert Run(tmp_path, watching).best() == ((20, 0.75) if is_stored else None)
    if is_stored:
        assert find_best(tmp_path).folder == first.folder


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
