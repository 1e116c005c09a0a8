"""Reports over attempts: what an attempt knows replaces, what it does not know stays, and it is an entry."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.program_samples import sample_job
from support.report_samples import DONE

from psfleet.report import html
from psfleet.report.attempts import merged, newest_attempt, resumed_from, standing, with_attempt, with_end
from psfleet.report.measurements import Gradients, PsGradients, StepSecs
from psfleet.report.schema import BestInfo, CheckpointInfo, Event, Report

FIRST = with_attempt(DONE, 100.0, 0, [])
NUMBERS = sorted(set(Report.model_fields) - {"status", "exit_code", "error", "run", "attempts"})


def outcome(code: int = 78, error: str | None = "refused", started: float = 200.0, **fields: Any) -> Report:
    """An attempt of which only its outcome is known, and `fields`."""
    content = {"name": "lenet", "run": "lenet-2", "mode": "sync", "target_step": 50}
    status = "done" if code == 0 else "failed"
    report = Report.model_validate({"status": status, "exit_code": code, "error": error, **content, **fields})
    return with_attempt(report, started, 1900, ["train.steps 1900 -> 50"], seconds=3.0)


def numbers(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in NUMBERS}


def test_a_refused_attempt_leaves_every_number_and_tells_its_outcome() -> None:
    report = merged(FIRST, outcome())
    assert numbers(report) == numbers(FIRST)
    assert (report.status, report.exit_code, report.error, report.run) == ("failed", 78, "refused", "lenet-2")
    assert [(each.status, each.exit_code, each.first_step, each.final_step) for each in report.attempts] == [
        ("done", 0, 0, 1900),
        ("failed", 78, 1900, 1900),
    ]
    assert report.attempts[1].changes == ["train.steps 1900 -> 50"]
    assert (report.attempts[1].seconds, report.attempts[1].target_step) == (3.0, 50)


def test_a_finished_run_that_is_done_at_once_keeps_its_counts() -> None:
    """The chief knows the checkpoint, evaluates it, and finds ps that have received nothing."""
    again = outcome(
        0,
        None,
        target_step=1900,
        final_step=1900,
        generation=1,
        seconds=2.0,
        eval={"accuracy": 0.99},
        gradients=Gradients(per_ps=[PsGradients()]),
        checkpoint=DONE.checkpoint,
    )
    report = merged(FIRST, again)
    assert numbers(report) == {**numbers(FIRST), "eval": {"accuracy": 0.99}}
    assert (report.status, len(report.attempts)) == ("done", 2)


def test_an_attempt_that_trained_replaces_what_it_measured() -> None:
    trained = outcome(
        75,
        "lost ps 1",
        target_step=3000,
        final_step=2400,
        loss=0.25,
        seconds=9.0,
        step_secs=StepSecs(p50=0.5),
        gradients=Gradients(pushed=7, used=7, since_step=1900),
    )
    report = merged(FIRST, trained)
    assert (report.final_step, report.target_step, report.loss, report.seconds) == (2400, 3000, 0.25, 9.0)
    assert (report.gradients, report.staleness, report.mode) == (trained.gradients, {}, "sync")
    assert (report.restarts, report.events) == (0, []), "those of the newest attempt that trained"
    assert (report.eval, report.checkpoint) == (FIRST.eval, FIRST.checkpoint), "it evaluated and saved nothing"


def test_an_attempt_that_trained_and_lost_all_ps_keeps_the_steps_that_nobody_counted() -> None:
    report = merged(FIRST, outcome(75, "lost all ps", loss=0.25))
    assert (report.loss, report.final_step, report.seconds) == (0.25, DONE.final_step, DONE.seconds)
    assert (report.gradients, report.versions) == (DONE.gradients, DONE.versions)


def test_a_report_that_is_written_again_has_one_entry_and_each_event_once() -> None:
    event = Event(time=3.0, role="worker", index=1, kind="restarted", cause="killed")
    once = merged(FIRST, outcome(events=[event], restarts=1))
    assert (once.restarts, once.events) == (FIRST.restarts + 1, [*FIRST.events, event])
    assert merged(once, outcome(events=[event], restarts=1)) == once
    assert merged(once, once) == once
    stopped = merged(once, with_end(once, "stopped", 143, "stopped by SIGTERM"))
    assert (stopped.exit_code, [each.exit_code for each in stopped.attempts]) == (143, [0, 143])


def test_a_report_of_an_earlier_version_becomes_the_first_attempt() -> None:
    report = merged(DONE, outcome())
    assert [(each.started, each.run, each.seconds) for each in report.attempts] == [
        (0.0, "lenet-1", DONE.seconds),
        (200.0, "lenet-2", 3.0),
    ]


def test_what_is_published_in_a_folder_is_merged_with_its_report(tmp_path: Path) -> None:
    saved = save(tmp_path / "checkpoints", 20)
    checkpoint = CheckpointInfo(path=str(saved.folder), step=20)
    html.publish(FIRST.model_copy(update={"checkpoint": checkpoint}), tmp_path)
    published = html.publish(outcome(), tmp_path)
    assert Report.read(tmp_path) == published
    assert (published.exit_code, published.loss, published.checkpoint) == (78, DONE.loss, checkpoint)
    assert newest_attempt(tmp_path) == {"run": "lenet-2", "status": "failed", "started": 200.0}
    assert "refused" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("content", ["of the user", "[]", '{"status": "done"}'])
def test_a_report_that_cannot_be_read_is_replaced_and_kept_beside(tmp_path: Path, content: str) -> None:
    """It may be whole: of a later version, which has more fields."""
    (tmp_path / Report.FILE_NAME).write_text(content)
    assert newest_attempt(tmp_path) == {}
    for _ in range(2):
        assert html.publish(outcome(), tmp_path).attempts == outcome().attempts
        assert (tmp_path / "report.json.unreadable").read_text() == content


def test_a_checkpoint_that_a_later_attempt_deleted_or_followed_is_replaced_by_the_newest(tmp_path: Path) -> None:
    newest = save(tmp_path / "checkpoints", 40)
    expected = CheckpointInfo(path=str(newest.folder), step=40)
    assert standing(FIRST, tmp_path).checkpoint == expected
    older = CheckpointInfo(path=str(save(tmp_path / "checkpoints", 20).folder), step=20)
    assert standing(FIRST.model_copy(update={"checkpoint": older}), tmp_path).checkpoint == expected


def test_the_best_checkpoint_is_named_as_long_as_it_is_there(tmp_path: Path) -> None:
    """An attempt without `checkpoint.best` deletes it, and knows no other one."""
    saved = save(tmp_path / "checkpoints", 20)
    best = BestInfo(metric="accuracy", value=0.5, step=20, path=str(saved.folder))
    html.publish(FIRST.model_copy(update={"best": best}), tmp_path)
    assert html.publish(outcome(), tmp_path).best == best
    shutil.rmtree(saved.folder)
    assert html.publish(outcome(started=300.0), tmp_path).best is None


def test_an_attempt_starts_from_the_newest_checkpoint_with_what_has_changed_since(tmp_path: Path) -> None:
    job = sample_job()
    assert resumed_from(tmp_path, job) == (0, [])
    save(tmp_path, 20)
    assert resumed_from(tmp_path, job) == (20, []), "its manifest has no job"
    next(tmp_path.rglob("manifest.json")).unlink()
    assert resumed_from(tmp_path, job) == (None, []), "no checkpoint is complete"


def test_an_attempt_that_trained_without_training_metrics_does_not_show_those_of_before() -> None:
    earlier = FIRST.model_copy(update={"training_metrics": {"accuracy": 0.5}})
    assert merged(earlier, outcome(0, None, loss=0.1, mode="ssp", final_step=3000)).training_metrics == {}
    assert merged(earlier, outcome()).training_metrics == {"accuracy": 0.5}
