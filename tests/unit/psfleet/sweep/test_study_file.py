"""Study files: what is refused, with which message, and the jobs of trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.errors import BadJobError, UsageError
from psfleet.sweep.loaded_study import LoadedStudy, load_study

ROOT = Path(__file__).parents[4]
STUDY: dict[str, Any] = {
    "name": "digits",
    "job": "job.yaml",
    "space": {"optimizer.learning_rate": {"float": [0.001, 0.1], "log": True}},
    "objective": {"metric": "loss", "direction": "minimize"},
    "search": {"kind": "random", "trials": 3},
}
STOP = {"metric": "loss", "direction": "minimize", "patience": 1}
JOB: dict[str, Any] = {
    "name": "tiny",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 3},
    "update": {"mode": "async"},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 20, "batch_size": 4},
}


def load(folder: Path, study: dict[str, Any] | None = None, job: dict[str, Any] | None = None) -> LoadedStudy:
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB | (job or {})))
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY | (study or {})))
    return load_study(folder / "study.yaml")


def test_the_job_of_a_trial_has_one_worker_and_its_values(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"space": {"options.units": {"int": [1, 8]}, "train.batch_size": {"choice": [2, 4]}}})
    job = loaded.job_of({"options.units": 3, "train.batch_size": 2})
    assert (job.fleet.ps, job.fleet.workers, job.update.mode) == (1, 1, "sync")
    assert (job.options, job.train.batch_size, job.train.steps) == ({"units": 3}, 2, 20)
    assert loaded.job == JOB, "the job file's content stays"


def test_a_trial_has_nothing_of_the_job_that_depends_on_its_number_of_workers(tmp_path: Path) -> None:
    sections = {"device": {"visible_gpus": {"worker": [[0], [1], [2]]}, "virtual_cpus": 2}}
    job = load(tmp_path, job={**sections, "input": {"from": "loaders", "loaders": 3, "pad": True}}).job_of({})
    assert (job.device.visible_gpus.worker, job.device.virtual_cpus) == ([], 2)
    assert (job.input.loaders, job.input.pad) == (1, True)


@pytest.mark.parametrize(
    ("study", "job", "message"),
    [
        ({"spaces": {}}, {}, "spaces: unknown key; did you mean space?"),
        ({"space": {"optimizer.rate": {"float": [1, 2]}}}, {}, "with space.optimizer.rate = 1.0"),
        ({"space": {"optimizer.learning_rate": {"float": [-1, 2]}}}, {}, "greater than 0"),
        ({"space": {"options.x": {"int": [1, 2]}, "train.steps": {"int": [0, 2]}}}, {}, "with space.train.steps = 0:"),
        ({"space": {"options.x": {"int": [1, 2]}}}, {"train": {"steps": 1}}, "study.yaml: job.yaml: train.batch_size"),
        ({"space": {"fleet.workers": {"int": [1, 2]}}}, {}, "space.fleet.workers: expected a field of options"),
        ({"space": {"train.steps": {"int": [1, 2], "choice": [1]}}}, {}, "exactly one of float, int and choice"),
        ({"space": {"train.steps": {"int": [2, 1]}}}, {}, "expected ascending numbers"),
        ({"space": {"train.steps": {"choice": [2, 1], "log": True}}}, {}, "log is true"),
        ({"space": {"options.x": {"float": [1, 2, 3]}}}, {}, "List should have at most 2 items, not 3"),
        ({"space": {"options.x": {"float": [float("nan"), 1]}}}, {}, "space.options.x.float.0 is nan"),
        ({"space": {"options.x": {"float": [-1.7e308, 1.7e308]}}}, {}, "expected a finite range"),
        ({"space": {"options.x": {"int": [0, 10**30]}}}, {}, "expected at most 9007199254740992"),
        ({"space": {"options.x": {"choice": [1, "a", True]}}}, {}, "choice has True twice"),
        ({"space": {"options..x": {"choice": [1]}}}, {}, "space.options..x: expected a field of options"),
        ({"space": {"options.x": {"int": [1, 1000]}, "options.y": {"int": [1, 101]}}, "search": {"kind": "grid"}}, {},
         "a grid of 101000 combinations"),
        ({"search": {"kind": "grid"}}, {}, "a grid has no float"),
        ({"search": {"kind": "random"}}, {}, "search.trials: missing"),
        ({"search": {"kind": "bayes", "trials": 1}}, {}, "search.kind is 'bayes'"),
        ({}, {"evaluate": {"every_steps": 5, "stop": STOP}}, "evaluate.stop is set"),
        ({"prune": {"kind": "asha"}}, {}, "prune: expected every_steps with asha"),
        ({}, {"device": {"replicas": 2, "virtual_cpus": 2}}, "device.replicas is set"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_in_one_line(
    tmp_path: Path, study: dict[str, Any], job: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadJobError) as raised:
        load(tmp_path, study, job)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_job_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        load(tmp_path, {"job": "other.yaml"})


def test_the_example_is_valid() -> None:
    loaded = load_study(ROOT / "examples" / "study" / "study.yaml")
    assert loaded.folder == ROOT / "examples" / "lenet"
