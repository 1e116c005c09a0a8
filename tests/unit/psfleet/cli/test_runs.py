"""`psfleet runs` and `psfleet compare`, as tables and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.program_samples import sample_job
from support.report_samples import DONE, FAILED

from psfleet.report.attempts import with_attempt
from psfleet.report.schema import Report
from psfleet.run_folder import claimed


def leave(name: str, report: Report, **train: int) -> None:
    """A run in `runs/`."""
    with claimed(Path("runs") / name, sample_job(**train), fresh=False):
        pass
    report.write(Path("runs") / name)


@pytest.fixture(autouse=True)
def _runs(psfleet: Psfleet) -> None:
    leave("a", with_attempt(DONE, 1.7e9, 0, []))
    leave("b", with_attempt(FAILED, 1.8e9, 0, []), steps=20)


def test_runs_are_a_table_or_json(psfleet: Psfleet) -> None:
    head, first, second = psfleet("runs").out.splitlines()
    assert head.split() == ["run", "job", "platform", "status", "step", "of", "metric", "started", "seconds"]
    assert first.split()[:6] == ["runs/b", "sample", "local", "failed", "(75)", "0"]
    assert second.split()[:8] == ["runs/a", "sample", "local", "done", "1900", "1900", "accuracy", "0.9876"]
    rows = json.loads(psfleet("runs", "runs", "--json").out)
    assert [(row["run"], row["status"], row["value"]) for row in rows] == [
        ("runs/b", "failed", None),
        ("runs/a", "done", 0.9876),
    ]


def test_a_metric_that_is_not_finite_is_a_text_in_json(psfleet: Psfleet) -> None:
    leave("c", with_attempt(DONE.model_copy(update={"eval": {"loss": math.nan}}), 1.9e9, 0, []))

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    row, *_ = json.loads(psfleet("runs", "--json").out, parse_constant=refuse)
    assert (row["run"], row["metric"], row["value"]) == ("runs/c", "loss", "NaN")


def test_runs_are_compared_by_settings_and_figures(psfleet: Psfleet) -> None:
    said = psfleet("compare", "a", "runs/b", "--html", "both.html")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert said.code == 0
    for expected in (
        "setting runs/a runs/b",
        "train.steps 10 20",
        "figure runs/a runs/b",
        "status done failed (75)",
        "evaluation: accuracy 0.9876 –",
        "both.html: curves of all runs",
    ):
        assert expected in lines
    assert Path("both.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a",), "expected two runs or more"),
        (
            ("a", "nowhere"),
            "nowhere: no job.json can be read (No such file or directory), expected the folder of a run, or its",
        ),
        (("a", "b", "--html", "no/such.html"), "--html no/such.html: No such file or directory"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(psfleet: Psfleet, arguments: tuple[str, ...], expected: str) -> None:
    said = psfleet("compare", *arguments)
    assert (said.code, expected in said.err) == (64, True), said


def test_runs_of_one_job_do_not_differ(psfleet: Psfleet) -> None:
    assert psfleet("compare", "a", "a").out.startswith("the jobs do not differ\n\n")


def test_a_folder_without_runs_says_so(psfleet: Psfleet) -> None:
    Path("empty").mkdir()
    assert psfleet("runs", "empty").out == "no runs in empty\n"
    assert psfleet("runs", "empty", "--json").out == "[]\n"
    assert psfleet("runs", "nowhere").code == 64
