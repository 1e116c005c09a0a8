"""The page of a run: curves of evaluation and training metrics on the same axes, and its job, folded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.checkpoint_samples import save
from support.program_samples import sample_job
from support.report_samples import DONE

from psfleet.report import html
from psfleet.report.history import History
from psfleet.report.html import render
from psfleet.report.json_lines import JsonLines
from psfleet.report.schema import Evaluation, EvaluationLog
from psfleet.report.shown_job import LONG_TEXT, job_of_run, shown
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog


def at(step: int, generation: int = 1, **metrics: float) -> dict[str, Any]:
    return {"time": 0.0, "step": step, "generation": generation, "metrics": metrics}


EVALUATIONS = [Evaluation(**at(step, loss=step / 10, accuracy=step / 100), secs=0.1) for step in (20, 40)]
TRAINING = [TrainingMetrics(**at(step, mean_loss=9 / step, accuracy=0.5, auc=0.25)) for step in (10, 20, 30)]


def charts_of(page: str) -> dict[str, ElementTree.Element]:
    """By title."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)]
    return {str(chart.findtext("title")): chart for chart in found}


def test_a_metric_of_both_is_two_curves_on_the_same_axes() -> None:
    page = render(DONE, [], EVALUATIONS, TRAINING)
    charts = charts_of(page)
    assert list(charts) == [
        "Evaluation and training: accuracy by step",
        "Training: auc by step",
        "Evaluation and training: loss by step",
    ]
    classes = {title: [path.get("class") for path in chart.iter("path")] for title, chart in charts.items()}
    assert list(classes.values()) == [["curve", "curve second"], ["curve"], ["curve", "curve second"]]
    assert page.count("</span> evaluation &ensp;") == 2
    summary = charts["Evaluation and training: loss by step"].findtext("desc")
    assert summary == (
        "Evaluation: From 2 at step 20 to 4 at step 40; lowest 2, highest 4. "
        "Training: From 0.9 at step 10 to 0.3 at step 30; lowest 0.3, highest 0.9."
    )
    numbers = render(DONE.model_copy(update={"training_metrics": {"auc": 0.25}}), [])
    assert '<th scope="row">training: auc</th><td>0.25</td>' in numbers


def test_the_page_of_a_folder_has_its_metrics_without_those_that_a_rollback_has_undone(tmp_path: Path) -> None:
    training = TrainingMetricsLog(tmp_path / TrainingMetricsLog.FILE_NAME)
    for each in (*TRAINING, TrainingMetrics(**at(25, 2, auc=0.75))):
        training.append(each)
    EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).append(EVALUATIONS[0])
    html.publish(DONE, tmp_path)
    charts = charts_of((tmp_path / "report.html").read_text())
    assert str(charts["Training: auc by step"].findtext("desc")).startswith("From 0.25 at step 10 to 0.75 at step 25")
    assert "Evaluation and training: accuracy by step" in charts


def test_the_job_is_folded_and_what_is_set_comes_before_the_defaults() -> None:
    options = {"text": "<" * LONG_TEXT + "end", "sizes": list(range(100)), "nested": {"depth": 3}}
    job = sample_job().model_copy(update={"options": options}).model_dump(mode="json")
    page = render(DONE, [], job=job)
    section = page[page.index("job-heading") : page.index("versions-heading")]
    assert section.count("<details") == section.count("</details>") == 4, "the job, its defaults, two long values"
    own = {each.field: each for each in shown(job).own}
    assert own["options.nested.depth"].text == "3"
    assert own["train.steps"].text == str(job["train"]["steps"])
    assert "tls" not in own
    assert "tls" in {each.field for each in shown(job).defaults}
    assert len(own["options.text"].text) < len(own["options.text"].rest) == LONG_TEXT + 3
    assert json.loads(own["options.sizes"].rest) == options["sizes"]
    assert "&lt;end" in section
    assert "<end" not in section


def test_every_field_of_the_job_is_shown_once_whatever_version_wrote_it() -> None:
    job = sample_job().model_dump(mode="json")
    fields = [each.field for each in (*shown(job).own, *shown(job).defaults)]
    assert len(fields) == len(set(fields)) >= 40
    assert [each.field for each in shown({"name": "old", "nodes": {"number": 3}}).own] == ["name", "nodes.number"]


def test_the_job_is_the_one_that_trained_the_model_or_else_that_of_the_newest_attempt(tmp_path: Path) -> None:
    assert job_of_run(tmp_path) is None
    (tmp_path / "job.json").write_text("[]")
    assert job_of_run(tmp_path) is None
    (tmp_path / "job.json").write_text(sample_job(steps=20).model_dump_json())
    found = job_of_run(tmp_path)
    assert found is not None
    assert found["train"]["steps"] == 20
    save(tmp_path / "checkpoints", 20, extra={"job": sample_job(steps=30).model_dump(mode="json")})
    found = job_of_run(tmp_path)
    assert found is not None
    assert found["train"]["steps"] == 30


FOREIGN = ['{"step": 12}', '{"time": 0, "step": 12, "generation": 1, "metrics": {"auc": "high"}}', '{"later": 1}', "7"]


@pytest.mark.parametrize("line", FOREIGN)
@pytest.mark.parametrize("log", [History, EvaluationLog, TrainingMetricsLog])
def test_a_line_that_is_no_record_of_this_version_is_left_out_of_the_page_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, log: type[JsonLines[Any]], line: str
) -> None:
    for each in TRAINING:
        TrainingMetricsLog(tmp_path / TrainingMetricsLog.FILE_NAME).append(each)
    path = tmp_path / str(vars(log)["FILE_NAME"])
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n{line}\n")
    assert html.publish(DONE, tmp_path).status == "done"
    assert "Training: auc by step" in charts_of((tmp_path / "report.html").read_text())
    [warning] = caplog.messages
    assert warning.startswith(f"2 lines of {path} are skipped; the first one: {path} line ")
