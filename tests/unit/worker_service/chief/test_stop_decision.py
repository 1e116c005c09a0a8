"""How the decision of `evaluate.stop` ends training: over chiefs, rollbacks, resumes and signals."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import reducing_fleet
from support.checkpoint_samples import random_values, save
from support.chief_samples import sample_job, shard_state
from support.monitored_run import Run, job

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, StoppedError
from psfleet.job.job import Job
from psfleet.report.schema import EvaluationLog, Report
from worker_service.chief.chief import Chief
from worker_service.chief.recovery import Recovery

EMPTY = pb.ShardState(run="run", phase=pb.EMPTY, cause="killed by SIGKILL")


def test_a_decision_is_an_event_once_its_end_is_scheduled_and_is_not_forgotten_by_the_next_chief(
    tmp_path: Path,
) -> None:
    reason = "accuracy has not improved in the last 2 evaluations: 0.75 at step 20, then 0.625 at step 60"
    run = Run(tmp_path)
    run.evaluate(s20=0.75, s40=0.5, s60=0.625)
    run.ps[1].accepts = lambda step: False
    run.committer.update([shard_state(61)] * 2)
    assert run.kinds() == [], "a ps refused: training may go on to its final step"
    run.ps[1].accepts = lambda step: True
    run.committer.update([shard_state(62)] * 2)
    assert [(event.kind, event.cause) for event in run.events.all()] == [("early_stop", reason)]
    run.evaluate(s80=0.9)
    successor = Run(tmp_path)
    assert successor.monitor.decision == run.monitor.decision
    assert successor.monitor.final_step == 60
    successor.commit(70, now=71)
    assert successor.ps[0].scheduled == successor.ps[1].scheduled == [(72, True)]
    assert successor.kinds() == ["early_stop"]
    assert EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).curve()[-1].step == 80


def test_a_decision_that_comes_with_the_final_step_is_neither_an_event_nor_in_the_report(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.evaluate(s20=0.75, s40=0.5, s60=0.625)
    run.committer.update([shard_state(99)] * 2)
    last = save(tmp_path / "checkpoints", 100)
    for chief in (run, Run(tmp_path)):
        assert chief.monitor.decision is not None
        report = chief.report(last)
        assert (report.status, report.stopped_early, report.events) == ("done", None, [])


def test_the_report_of_a_run_that_was_stopped_early_before_has_the_event_again(tmp_path: Path) -> None:
    """A resumed run finds its end in the folder, and schedules nothing."""
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    report = Run(tmp_path).report(save(tmp_path / "checkpoints", 63))
    assert [event.cause for event in report.events] == [report.stopped_early]


def test_after_a_rollback_training_ends_no_earlier_than_the_evaluation_that_decided(tmp_path: Path) -> None:
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    run = Run(tmp_path)
    for now in (11, 12, 13):
        run.committer.update([shard_state(now, generation=2)] * 2)
    assert run.ps[0].scheduled == [(60, True)]


def held(*steps: int) -> list[pb.ShardState]:
    """The states of ps at step 30 that are held at steps."""
    states = [shard_state(30) for _ in steps]
    for state, step in zip(states, steps, strict=True):
        state.hold_at = step
    return states


def test_a_run_that_is_held_before_the_evaluation_that_decided_stays_held_until_it_may_train_so_far(
    tmp_path: Path,
) -> None:
    Run(tmp_path).evaluate(s20=0.75, s40=0.5, s60=0.625)
    run = Run(tmp_path)
    for states in (held(30, 30), held(59, 59), held(60, 59)):
        run.committer.update(states)
    assert [one.scheduled for one in run.ps] == [[], []]
    run.committer.update(held(60, 60))
    assert [one.scheduled for one in run.ps] == [[(60, True)]] * 2


@pytest.mark.parametrize(
    ("watching", "is_refused"),
    [
        pytest.param(job(), True, id="evaluate.stop"),
        pytest.param(reducing_fleet.JOB, True, id="plateau"),
        pytest.param(sample_job(evaluate={"every_steps": 20}), False, id="nothing"),
    ],
)
def test_a_line_that_is_no_evaluation_of_this_version_is_refused_where_it_could_decide_and_else_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, watching: Job, is_refused: bool
) -> None:
    Run(tmp_path).evaluate(s20=0.75)
    with (tmp_path / EvaluationLog.FILE_NAME).open("a") as file:
        file.write('{"step": 40, "accuracy": 0.9}\n')
    foreign = r"evaluations\.jsonl line 2: time: Field required"
    if is_refused:
        with pytest.raises(BadJobError, match=foreign):
            Run(tmp_path, watching)
    else:
        assert Run(tmp_path, watching).monitor.decision is None
        assert re.search(foreign, caplog.text)


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
    outcomes: list[tuple[int, bool]] = []

    def finish(outcome: pb.Outcome) -> None:
        outcomes.append((outcome.exit_code, (tmp_path / Report.DRAFT_NAME).exists()))

    run.context.fleet.finish = finish
    chief: Any = SimpleNamespace(
        _context=run.context, error=None, _heartbeat=SimpleNamespace(finish=lambda outcome: None),
        _components=SimpleNamespace(recorder=run.recorder, finisher=run.finisher),
    )  # fmt: skip
    Chief._end(chief, save(tmp_path / "checkpoints", step), [])
    assert outcomes == [(exit_code, exit_code == 0)], "the draft is there before the ps end, which have the counts"
    assert isinstance(chief.error, StoppedError) == bool(exit_code)
