"""Sections that watch a metric: what is better, what is an improvement, and which jobs are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.monitored import Best, Stop
from psfleet.job.program import load_program
from psfleet.job.watched_metrics import require_metrics

SGD = {"name": "sgd", "learning_rate": 0.1}
PROGRAM = """
import psfleet

def build(**options):
    return psfleet.GraphProgram(loss=lambda batch: batch, train=lambda shard, shards: None, **options)
"""


def job(**sections: Any) -> Job:
    content = {
        "name": "watched",
        "program": "watched_program:build",
        "optimizer": SGD,
        "train": {"steps": 10, "batch_size": 4},
        "evaluate": {"every_steps": 5},
    }
    return parse_job(content | sections)


@pytest.mark.parametrize(
    ("direction", "value", "than", "is_better"),
    [
        ("maximize", 0.9, 0.8, True),
        ("maximize", 0.8, 0.8, False),
        ("minimize", 0.7, 0.8, True),
        ("minimize", 0.9, 0.8, False),
        ("maximize", math.nan, None, False),
        ("maximize", math.inf, 0.8, False),
        ("minimize", -math.inf, 0.8, False),
        ("maximize", -3.0, None, True),
    ],
)
def test_a_finite_value_is_better_if_it_differs_in_the_direction(
    direction: Any, value: float, than: float | None, is_better: bool
) -> None:
    assert (Best(metric="accuracy", direction=direction).gain(value, than) > 0) == is_better


@pytest.mark.parametrize(
    ("min_delta", "value", "is_improvement"),
    [(0.0, 0.5, False), (0.0, 0.5001, True), (0.25, 0.75, True), (0.25, 0.74, False)],
)
def test_an_improvement_is_at_least_the_smallest_difference(
    min_delta: float, value: float, is_improvement: bool
) -> None:
    assert Stop(metric="accuracy", patience=1, min_delta=min_delta).is_improvement(value, 0.5) == is_improvement


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"evaluate": {"every_steps": 5, "stop": {"metric": "loss", "patience": 2}}},
            "direction is missing for metric loss, expected minimize or maximize",
        ),
        (
            {"checkpoint": {"best": {"metric": "dense_loss"}}},
            "direction is missing for metric dense_loss, expected minimize or maximize",
        ),
        (
            {"evaluate": {"stop": {"metric": "accuracy", "patience": 2}}},
            "evaluate.every_steps is null, expected a number of steps with evaluate.stop",
        ),
        (
            {"evaluate": {}, "checkpoint": {"best": {"metric": "accuracy"}}},
            "evaluate.every_steps is null, expected a number of steps with checkpoint.best",
        ),
        (
            {"evaluate": {}, "optimizer": {**SGD, "schedule": {"kind": "plateau", "metric": "accuracy"}}},
            "evaluate.every_steps is null, expected a number of steps with optimizer.schedule",
        ),
        (
            {"optimizer": {**SGD, "schedule": {"kind": "plateau", "metric": "loss"}}},
            "optimizer.schedule: direction is missing for metric loss, expected minimize or maximize",
        ),
        (
            {"optimizer": {**SGD, "schedule": {"kind": "plateau", "metric": "accuracy", "factor": 1}}},
            "optimizer.schedule.factor is 1: Input should be less than 1",
        ),
        (
            {"evaluate": {"every_steps": 5, "stop": {"metric": "accuracy", "patience": 0}}},
            "evaluate.stop.patience is 0: Input should be greater than or equal to 1",
        ),
        (
            {"checkpoint": {"best": {"metric": "accuracy", "direction": "max"}}},
            "checkpoint.best.direction is 'max': Input should be 'maximize' or 'minimize'",
        ),
    ],
)
def test_a_job_that_cannot_watch_its_metric_is_refused(sections: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadJobError) as caught:
        job(**sections)
    assert expected in str(caught.value)


def test_a_resolved_job_is_valid_although_the_direction_is_a_default() -> None:
    resolved = job(checkpoint={"best": {"metric": "accuracy"}}).model_dump(mode="json")
    assert parse_job(resolved).checkpoint.best == Best(metric="accuracy", direction="maximize")


def test_an_unknown_metric_is_refused_with_those_that_there_are() -> None:
    watching = job(checkpoint={"best": {"metric": "acc"}})
    require_metrics(watching, {"acc": 1.0})
    with pytest.raises(BadJobError, match=r"^checkpoint\.best\.metric is 'acc', .*metrics: accuracy, loss$"):
        require_metrics(watching, {"loss": 0.5, "accuracy": 1.0})


def test_a_metric_of_the_schedule_is_looked_for_as_those_of_other_sections() -> None:
    watching = job(optimizer={**SGD, "schedule": {"kind": "plateau", "metric": "acc"}})
    require_metrics(watching, {"acc": 1.0})
    with pytest.raises(BadJobError, match=r"^optimizer\.schedule\.metric is 'acc', .*metrics: accuracy, loss$"):
        require_metrics(watching, {"loss": 0.5, "accuracy": 1.0})


def test_a_program_without_evaluation_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "watched_program.py").write_text(PROGRAM)
    load_program(job(), tmp_path)
    stopping = job(evaluate={"every_steps": 5, "stop": {"metric": "accuracy", "patience": 2}})
    with pytest.raises(BadJobError, match=r"evaluate\.stop need evaluations.*no evaluation data"):
        load_program(stopping, tmp_path)
