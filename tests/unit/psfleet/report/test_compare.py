"""Runs side by side: their settings, their figures, and all curves on one page that needs nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.checkpoint_samples import save
from support.program_samples import sample_job
from support.report_samples import DONE, TWO_ATTEMPTS

from psfleet.errors import BadJobError, UsageError
from psfleet.report.charts import RIGHT, joint_chart, line_chart
from psfleet.report.compare import NUM_COLORS, ComparedRun, figures, render, settings
from psfleet.report.history import History, Point
from psfleet.report.measurements import Gradients
from psfleet.report.schema import Evaluation, EvaluationLog
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog


@pytest.fixture
def runs(tmp_path: Path) -> list[ComparedRun]:
    """Two runs that ended, and one that trains for the first time and has no report."""
    for name, steps, report in (("<a>", 10, DONE), ("b", 20, TWO_ATTEMPTS), ("c", 10, None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text(sample_job(steps=steps).model_dump_json())
        if report is not None:
            report.write(tmp_path / name)
        history = History(tmp_path / name / History.FILE_NAME)
        for step in range(1, steps if report is not None else 2):
            history.append(
                Point(time=0.0, step=step, generation=1, loss=1 / step, step_secs=0.1, examples_per_sec=40.0)
            )
    return [ComparedRun.read(tmp_path / name) for name in ("<a>", "b", "c")]


def test_only_settings_that_differ_are_listed(runs: list[ComparedRun]) -> None:
    assert settings(runs) == [("train.steps", ("10", "20", "10"))]
    assert settings([runs[0], runs[2]]) == []


def test_the_job_is_the_one_that_trained_the_model(tmp_path: Path, runs: list[ComparedRun]) -> None:
    """An attempt with another job was refused."""
    save(tmp_path / "b" / "checkpoints", 20, extra={"job": sample_job(steps=30).model_dump(mode="json")})
    assert settings([runs[0], ComparedRun.read(tmp_path / "b")]) == [("train.steps", ("10", "30"))]


def test_figures_are_those_of_the_reports(runs: list[ComparedRun]) -> None:
    found = dict(figures(runs))
    assert found["status"] == ("done", "failed (75)", "–")
    assert found["evaluation: accuracy"] == ("0.9876", "0.9876", "–")
    assert found["steps"] == ("1,900 of 1,900", "1,900 of 1,900", "–")
    assert found["attempts"] == ("1", "2", "–")


def test_no_row_says_what_another_one_says(runs: list[ComparedRun]) -> None:
    named = [replace(run, job={**run.job, "name": Path(run.label).name}) for run in runs]
    assert [name for name, _ in settings(named)] == ["train.steps"], "the heads of the columns have the names"
    assert [name for name, _ in settings([runs[0], *named[1:]])] == ["name", "train.steps"]
    names = {name for name, _ in figures(runs[:1])}
    assert "attempts" not in names, "it is one"
    assert {"restarts", "gradients dropped"} < names, "they are not zero"
    nothing = replace(runs[0], report=DONE.model_copy(update={"restarts": 0, "gradients": Gradients(used=3)}))
    assert not {"restarts", "gradients dropped"} & {name for name, _ in figures([nothing, runs[2]])}
    assert figures(runs[2:]) == []


def test_the_page_has_the_curve_of_each_run_and_needs_nothing_else(runs: list[ComparedRun]) -> None:
    page = render(runs)
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)]
    assert [chart.findtext("title") for chart in charts] == ["Loss by step", "Examples per second by step"]
    for chart in charts:
        assert [path.get("style", "").partition(";")[0] for path in chart.iter("path")] == [
            "stroke: var(--run-0)",
            "stroke: var(--run-1)",
        ]
        assert [dot.get("style") for dot in chart.iter("circle")] == ["fill: var(--run-2)"]
    assert "&lt;a&gt; ends at 0.1111 at step 9; " in page
    assert "<a>" not in page
    assert not re.search(r"<script|https?://|url\(|@import|\ssrc=|\shref=", page)


def test_the_page_has_the_metrics_of_runs_of_different_length(runs: list[ComparedRun]) -> None:
    """The longer run also has its value where the shorter one ends; one run has no training metrics."""
    for run, last in ((runs[0], 20), (runs[1], 60)):
        folder = Path(run.label)
        log, training = EvaluationLog(folder / EvaluationLog.FILE_NAME), folder / TrainingMetricsLog.FILE_NAME
        for step in range(10, last + 1, 10):
            content: dict[str, Any] = {"time": 0.0, "step": step, "generation": 1}
            log.append(Evaluation(**content, secs=0.1, metrics={"accuracy": step / 100}))
            if last == 60:
                metrics = {"accuracy": step / 200, "mean_loss": 1 / step}
                TrainingMetricsLog(training).append(TrainingMetrics(**content, metrics=metrics))
    page = render([ComparedRun.read(Path(run.label)) for run in runs[:2]])
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)]
    found = {str(chart.findtext("title")): chart for chart in charts}
    assert list(found) == [
        "Loss by step",
        "Evaluation: accuracy by step",
        "Training: accuracy by step",
        "Training: mean_loss by step",
        "Examples per second by step",
    ]
    ends = [str(path.get("d")).split("L")[-1].split() for path in found["Evaluation: accuracy by step"].iter("path")]
    assert float(ends[0][0]) < float(ends[1][0]) == RIGHT
    assert len(list(found["Training: accuracy by step"].iter("path"))) == 1
    summary = str(found["Evaluation: accuracy by step"].findtext("desc"))
    assert summary.endswith("b ends at 0.6 at step 60, and has 0.2 at step 20.")
    assert "a> ends at 0.2 at step 20; " in summary


def test_more_runs_than_colours_are_told_apart_by_dashes(runs: list[ComparedRun]) -> None:
    page = render(runs[:1] * (NUM_COLORS + 1))
    assert page.count("stroke: var(--run-0); stroke-dasharray: none") == 4
    assert page.count("stroke: var(--run-0); stroke-dasharray: 6 4") == 4


def test_a_joint_chart_has_the_axes_of_all_series_and_each_curve_as_its_own_chart() -> None:
    first, second = [(0.0, 1.0), (10.0, 2.0)], [(0.0, 3.0), (40.0, 5.0), (50.0, float("nan"))]
    chart, alone = joint_chart([first, [], second]), line_chart([*first, *second])
    assert chart is not None
    assert alone is not None
    assert (chart.x_axis, chart.y_axis) == (alone.x_axis, alone.y_axis)
    assert [len(curve.paths) for curve in chart.curves] == [1, 0, 1]
    assert joint_chart([[], [(1.0, float("inf"))]]) is None


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no job\.json can be read"):
        ComparedRun.read(tmp_path)
    (tmp_path / "job.json").write_text("[]")
    with pytest.raises(BadJobError, match="expected a resolved job"):
        ComparedRun.read(tmp_path)
