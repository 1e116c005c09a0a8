"""The files of a study: the table, the job file of the best trial, and the weights that are kept."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from psfleet.job import trial_records
from psfleet.job.job import load_job
from psfleet.sweep import results
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.study_file import Study

NAME = "optimizer.learning_rate"
JOB: dict[str, Any] = {
    "name": "tiny",
    "program": "models.digits:build",
    "fleet": {"workers": 3},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 20, "batch_size": 4},
}


def trial(number: int, value: float | None, state: str = "COMPLETE", **attributes: Any) -> Any:
    """What is used of Optuna's object of a finished trial."""
    began = datetime(2026, 1, 1)
    return SimpleNamespace(
        number=number,
        value=value,
        state=SimpleNamespace(name=state),
        params={NAME: 0.5 / (1 + number)},
        user_attrs=attributes,
        datetime_start=began,
        datetime_complete=began + timedelta(seconds=2.5),
    )


def loaded(folder: Path, direction: str) -> LoadedStudy:
    study = {
        "name": "digits",
        "job": "job.yaml",
        "space": {NAME: {"float": [0.001, 1]}},
        "objective": {"metric": "accuracy", "direction": direction},
        "search": {"kind": "random", "trials": 4},
        "keep": 2,
    }
    return LoadedStudy(Study.model_validate(study), JOB, folder)


def test_files_are_those_of_the_best_trials(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    for number in range(7):
        trial_records.weights_file(tmp_path, number).touch()
    trials = [
        trial(0, 0.5, metrics={"accuracy": 0.5, "loss": 2.0}),
        trial(1, 0.9, metrics={"accuracy": 0.9, "loss": 1.0}),
        trial(2, None, "FAIL", error="step 3: the loss is NaN, expected a finite number"),
        trial(3, 0.9, "PRUNED"),
        trial(5, 0.7, metrics={"accuracy": 0.7, "loss": 1.5}),
    ]
    results.write(loaded(tmp_path, "maximize"), tmp_path, trials, repeated=[4])
    assert {path.stem for path in (tmp_path / "weights").iterdir()} == {"00001", "00005", "00006"}, "6 still trains"
    with (tmp_path / results.TRIALS).open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["trial"], row["state"]) for row in rows] == [
        ("0", "complete"), ("1", "complete"), ("2", "fail"), ("3", "pruned"), ("5", "complete")
    ]  # fmt: skip
    assert rows[1] | {"error": ""} == {
        "trial": "1", "state": "complete", "accuracy": "0.9", "secs": "2.50", NAME: "0.25", "metric.accuracy": "0.9",
        "metric.loss": "1.0", "error": "",
    }  # fmt: skip
    assert "NaN" in rows[2]["error"]
    job = load_job(tmp_path / results.BEST)
    assert (job.rule.learning_rate, job.fleet.workers, job.program) == (0.25, 1, "best_program:build")
    assert job.name == "digits-best", "the folder of a run of the study's job is another one"
    assert yaml.safe_load((tmp_path / results.BEST).read_text())["train"] == JOB["train"]
    assert "from models.digits import build" in (tmp_path / "best_program.py").read_text()


def test_the_best_job_of_a_study_can_be_that_of_another_study(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    results.write(loaded(tmp_path, "minimize"), first, [trial(0, 0.5)])
    found = LoadedStudy(loaded(tmp_path, "minimize").study, yaml.safe_load((first / results.BEST).read_text()), first)
    results.write(found, second, [trial(1, 0.5)])
    assert load_job(second / results.BEST).rule.learning_rate == 0.25
    program = (second / "best_program.py").read_text()
    assert "from models.digits import build" in program
    assert str(first) not in program, "it would import itself"


def test_the_lowest_value_is_the_best_of_a_study_that_minimizes(tmp_path: Path) -> None:
    trials = [trial(0, 0.5), trial(1, 0.2), trial(2, 0.2), trial(3, 0.1, "PRUNED")]
    assert [each.number for each in results.best_first(loaded(tmp_path, "minimize").study, trials)] == [1, 2, 0]
