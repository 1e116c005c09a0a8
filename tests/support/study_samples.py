"""A study of two trials, and its results as a driver leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from psfleet.sweep import results
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import StoredStudy
from psfleet.sweep.study_file import Study

JOB: dict[str, Any] = {
    "name": "tiny",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 20, "batch_size": 4},
    "container": {"worker_image": "mine:1"},
}


def loaded(folder: Path, **fields: Any) -> LoadedStudy:
    """A grid of two trials named `small`."""
    study = {
        "name": "small",
        "job": "job.yaml",
        "space": {"optimizer.learning_rate": {"choice": [0.01, 0.02]}},
        "objective": {"metric": "loss", "direction": "minimize"},
        "search": {"kind": "grid"},
        "fleet": {"workers": 2},
    }
    return LoadedStudy(Study.model_validate(study | fields), JOB, folder)


def advance(study: LoadedStudy, folder: Path) -> int:
    """Completes one more trial, as a driver and its worker do; returns its number."""
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    stored = StoredStudy(study, folder)
    trial = stored.ask(2)
    assert trial is not None
    (folder / "weights" / f"{trial.number:05d}.safetensors").write_bytes(f"weights {trial.number}".encode())
    stored.study.sampler = optuna.samplers.RandomSampler()
    stored.study.tell(trial, float(trial.number))
    results.write(study, folder, stored.finished(), stored.repeated())
    (folder / results.REPORT).write_text("a page")
    return int(trial.number)
