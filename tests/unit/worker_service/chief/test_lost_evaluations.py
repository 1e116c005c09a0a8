"""A chief that replaces another names the steps that were to be evaluated before, and never will be."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import sample_context, sample_job, sample_storage

from psfleet.layout import Layout
from psfleet.report.schema import Evaluation, EvaluationLog
from psfleet.run_folder import STARTED
from psfleet.service import settings
from worker_service.chief.components import chief_components
from worker_service.chief.lost_evaluations import lost_steps
from worker_service.chief.monitor import Monitor
from worker_service.chief.recorder import Recorder

JOB = sample_job(evaluate={"every_steps": 20})
EARLIER = [20, 40, 60]


def made(*steps: int, generation: int = 1) -> list[Evaluation]:
    return [Evaluation(time=0, step=step, generation=generation, secs=0.1, metrics={"accuracy": 0.5}) for step in steps]


@pytest.mark.parametrize(
    ("evaluations", "start", "generation", "first_step", "step", "lost"),
    [
        pytest.param(made(20), 0, 1, 0, 47, [40], id="one that ran"),
        pytest.param(made(20), 0, 1, 0, 40, [40], id="one that had just begun"),
        pytest.param(made(20, 40), 0, 1, 0, 47, [], id="none"),
        pytest.param(made(), 0, 1, 0, 47, [20, 40], id="all"),
        pytest.param(made(20, 43), 0, 1, 0, 61, [60], id="after one of async mode, between two due steps"),
        pytest.param(made(), 40, 1, 40, 47, [], id="none in this attempt"),
        pytest.param(made(20), 0, 2, 50, 50, [40], id="one that ran when all ps were lost, too"),
        pytest.param(made(20, 40), 0, 2, 30, 30, [], id="none that is made again after a rollback"),
        pytest.param(made(*EARLIER), 0, 2, 30, 47, [40], id="one that had been made before a rollback"),
        pytest.param([*made(*EARLIER), *made(40, generation=2)], 0, 2, 30, 47, [], id="none since a rollback"),
        pytest.param(made(20, 40, 60, 80), 0, 1, 0, 100, [], id="that of the final step is made at the end"),
    ],
)
def test_steps_that_were_due_and_have_no_evaluation_are_lost(
    evaluations: list[Evaluation], start: int, generation: int, first_step: int, step: int, lost: list[int]
) -> None:
    assert lost_steps(JOB, evaluations, start, generation, first_step, step) == lost


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="no evaluations are due"),
        pytest.param(
            {"evaluate": {"every_steps": 20}, "checkpoint": {"best": {"metric": "accuracy"}}},
            id="the next chief evaluates the checkpoints",
        ),
    ],
)
def test_nothing_is_lost_otherwise(sections: dict[str, Any]) -> None:
    assert lost_steps(sample_job(**sections), [], 0, 1, 0, 47) == []


@pytest.mark.parametrize("has_data", [True, False], ids=["evaluation data", "no evaluation data"])
def test_lost_steps_are_an_event_once(tmp_path: Path, has_data: bool) -> None:
    """Also if the next chief is killed, too."""
    EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).append(*made(20))
    evaluator: Any = SimpleNamespace(has_data=has_data)
    for steps in ((47, 52), (69, 89)):
        storage = sample_storage(sample_context(tmp_path, job=JOB))
        monitor = Monitor(tmp_path, JOB, storage, lost_from=0)
        recorder = Recorder(tmp_path, JOB, Layout.plan([], [], [], 2, 4096), None, storage, monitor)
        recorder._evaluation._evaluator = evaluator
        recorder.begin(1, 0)
        for step in steps:
            recorder.start(step)
        recorder.close()
    lost = [f"not evaluated by the chief before this one: step {step}" for step in (40, 60) if has_data]
    assert [(event.kind, event.cause) for event in storage.events.all()] == [
        ("evaluation_skipped", each) for each in lost
    ]


@pytest.mark.parametrize("is_successor", [True, False], ids=["a successor", "the first chief of an attempt"])
def test_only_a_chief_that_replaces_another_has_lost_steps(tmp_path: Path, is_successor: bool) -> None:
    (tmp_path / STARTED).write_text(json.dumps({"name": "", "time": 50.0, "first_step": 0}))
    variables = {"PSFLEET_OUT": str(tmp_path)} | ({settings.CAUSE: "it was killed"} if is_successor else {})
    front: Any = SimpleNamespace(initial_values=None, evaluation=[])
    components = chief_components(settings.read(variables), sample_context(tmp_path, job=JOB), front)
    components.recorder.begin(1, 0)
    components.recorder.start(47)
    components.recorder.close()
    assert [event.kind for event in components.events.all()] == ["evaluation_skipped"] * is_successor
