"""Loaders in a fleet: the weights are those of workers that read themselves, whatever happens to the loaders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_fleet import PROGRAM, START_SECS, training

import psfleet
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.tensors import read_tensors

pytestmark = pytest.mark.usefixtures("launches_forked")

MODULE = "loaded_program"


def job(**sections: Any) -> dict[str, Any]:
    content = {
        "program": f"{MODULE}:build",
        "fleet": {"ps": 1, "workers": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "train": {"steps": 40, "batch_size": 4, "shuffle": 16, "seed": 7},
        "device": {"intra_op_threads": 1},
    }
    return content | sections


def weights(run: Path) -> np.ndarray:
    checkpoint = newest(run / "checkpoints")
    assert checkpoint is not None
    return read_tensors(checkpoint)["w"]


def trained(folder: Path, source: dict[str, Any]) -> np.ndarray:
    folder.mkdir()
    shutil.copy(PROGRAM.with_name(f"{MODULE}.py"), folder)
    report = psfleet.train({"name": "loaded", **job(input=source)}, out=folder / "run", program_folder=folder)
    assert (report.status, report.final_step) == ("done", 40), report.error
    return weights(folder / "run")


def test_a_killed_loader_costs_no_step_and_changes_no_weight(tmp_path: Path) -> None:
    expected = trained(tmp_path / "own", {"from": "worker"})
    loaded = job(input={"from": "loaders", "loaders": 2})
    with training(tmp_path, step_secs=0.02, programs=(MODULE,), **loaded) as fleet:
        fleet.wait_for_step(5)
        fleet.kill("loader", 0)
        fleet.wait_for(lambda: fleet.entries("loader_lost"), START_SECS, "worker 0 to lose its loader")
        report = fleet.done()
        lost = [len(fleet.entries("loader_lost", index=index)) for index in (0, 1)]
        codes = [entry for index in (0, 1) for entry in fleet.entries("failed", "loader", index)]
    assert not codes, codes
    assert lost == [1, 0], "loaders end after the workers"
    assert (report.gradients.pushed, report.gradients.used) == (80, 80)
    assert np.array_equal(weights(fleet.out), expected)
