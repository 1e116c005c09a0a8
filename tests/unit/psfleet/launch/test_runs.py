"""The runs in a folder: those that ended by their reports, and one that trains by its lock and its chief's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.program_samples import sample_job
from support.report_samples import DONE, FAILED, TWO_ATTEMPTS
from support.scripted_platform import log

from psfleet.errors import UsageError
from psfleet.job.job import parse_job
from psfleet.launch.runs import RUNNING, runs_in
from psfleet.report.attempts import with_attempt
from psfleet.report.schema import Report
from psfleet.run_folder import LOCAL, claimed

JOB = sample_job()


def leave(path: Path, report: Report | None, platform: str = LOCAL) -> None:
    """A run that has ended, with its report if it left one."""
    with claimed(path, JOB, fresh=False, platform=platform):
        pass
    if report is not None:
        report.write(path)


def test_runs_are_listed_by_their_reports_the_newest_first(tmp_path: Path) -> None:
    leave(tmp_path / "old", with_attempt(DONE, 1000.0, 0, []))
    leave(tmp_path / "new", with_attempt(FAILED, 2000.0, 0, [], seconds=3.0), "compose")
    leave(tmp_path / "again", TWO_ATTEMPTS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "notes.txt").touch()
    shown = [(Path(each.run).name, each.platform, each.status, each.exit_code, each.step) for each in runs_in(tmp_path)]
    assert shown == [
        ("again", LOCAL, "failed", 75, 1900),
        ("new", "compose", "failed", 75, 0),
        ("old", LOCAL, "done", 0, 1900),
    ]
    again, new, old = runs_in(tmp_path)
    assert (old.job, old.target_step, old.metric, old.value) == ("sample", 1900, "accuracy", 0.9876)
    assert (old.started, old.seconds) == (1000.0, DONE.seconds)
    assert (new.metric, new.value, new.seconds) == ("", None, 3.0)
    assert (again.started, again.seconds) == (1.8e9, 2.0), "of the newest attempt"


def test_a_run_without_a_report_or_with_one_of_an_earlier_version_is_listed(tmp_path: Path) -> None:
    leave(tmp_path / "none", None)
    leave(tmp_path / "before", DONE)
    for path, when in (("none", 500.0), ("before", 400.0)):
        os.utime(tmp_path / path / ".run", (when, when))
    none, before = runs_in(tmp_path)
    assert (none.status, none.step, none.started) == ("no report", None, 500.0)
    assert (before.status, before.started, before.seconds) == ("done", 400.0, DONE.seconds)
    assert [each.run for each in runs_in(tmp_path / "none")] == [str(tmp_path / "none")], "a run's own folder"


WATCHES = {"metric": "main_auc", "direction": "maximize"}


@pytest.mark.parametrize(
    ("metrics", "sections", "shown"),
    [
        ({"loss": 0.5, "mae": 0.1}, {}, "mae"),
        ({"aux_loss": 0.2, "loss": 0.5, "aux_accuracy": 0.7, "main_auc": 0.6}, {}, "aux_accuracy"),
        ({"auc": 0.2, "accuracy": 0.5}, {}, "accuracy"),
        ({"aux_loss": 0.2, "loss": 0.5}, {}, "loss"),
        ({"aux_loss": 0.2}, {}, "aux_loss"),
        ({"accuracy": 0.2, "main_auc": 0.5}, {"checkpoint": {"best": WATCHES}}, "main_auc"),
        (
            {"accuracy": 0.2, "main_auc": 0.5},
            {"evaluate": {"every_steps": 2, "stop": {**WATCHES, "patience": 2}}},
            "main_auc",
        ),
        ({"accuracy": 0.2}, {"checkpoint": {"best": WATCHES}}, "accuracy"),
    ],
    ids=["no loss", "two outputs", "accuracy", "only losses", "one", "best", "stop", "not evaluated"],
)
def test_the_metric_of_a_run_is_the_one_that_its_job_names_or_no_loss(
    tmp_path: Path, metrics: dict[str, float], sections: dict[str, Any], shown: str
) -> None:
    content = JOB.model_dump(mode="json") | {"evaluate": {"every_steps": 2}} | sections
    with claimed(tmp_path / "a", parse_job(content), fresh=False) as folder:
        DONE.model_copy(update={"eval": metrics}).write(folder.path)
        folder.log("worker", 0).write_text("\n".join(log({"event": "evaluation", "metrics": metrics, "secs": 1.0})))
        assert [(each.metric, each.value) for each in runs_in(tmp_path)] == [(shown, metrics[shown])], "it trains"
    assert [(each.metric, each.value) for each in runs_in(tmp_path)] == [(shown, metrics[shown])]


def test_a_run_whose_job_cannot_be_read_has_a_metric(tmp_path: Path) -> None:
    leave(tmp_path / "a", DONE)
    (tmp_path / "a" / "job.json").write_text('{"name": 3}')
    assert [each.metric for each in runs_in(tmp_path)] == ["accuracy"]


ENTRIES: list[dict[str, Any]] = [
    {"event": "fleet", "step": 3, "target": 300},
    {"event": "evaluation", "metrics": {"accuracy": 0.5}, "secs": 0.1},
    {"event": "fleet", "step": 120, "target": 300},
    # Of the training program.
    {"event": "evaluation", "metrics": ["accuracy"]},
    {"event": "fleet", "trucks": 3},
]


def test_a_run_that_trains_shows_where_its_chief_is(tmp_path: Path) -> None:
    leave(tmp_path / "a", with_attempt(DONE, 1000.0, 0, []))
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        (starting,) = runs_in(tmp_path)
        assert (starting.status, starting.step, starting.value) == (RUNNING, None, DONE.eval["accuracy"])
        folder.log("worker", 0).write_text("noise\n" + "\n".join(log(*ENTRIES)) + "\n{")
        (found,) = runs_in(tmp_path)
        assert (found.status, found.exit_code, found.step, found.target_step) == (RUNNING, None, 120, 300)
        assert (found.metric, found.value) == ("accuracy", 0.5)
        assert found.started == (tmp_path / "a" / ".run").stat().st_mtime
        assert 0 <= found.seconds < 60
    (ended,) = runs_in(tmp_path)
    assert ended.status == "done", "it was killed: what the attempts before reported"


def test_a_folder_whose_results_are_copied_does_not_run_here(tmp_path: Path) -> None:
    leave(tmp_path / "a", with_attempt(DONE, 1000.0, 0, []), "compose")
    with claimed(tmp_path / "a", JOB, fresh=False, platform="compose"):
        assert [each.status for each in runs_in(tmp_path)] == ["done"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder, expected one that holds the folders of runs"):
        runs_in(tmp_path / "none")
