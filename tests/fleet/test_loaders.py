"""Loaders in a fleet: the weights are those of workers that read themselves, whatever happens to the loaders."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_fleet import END_SECS, PROGRAM, START_SECS, Fleet, training

import psfleet
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import LOST_PEERS, PROGRAM_FAILED

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


def trained(folder: Path, source: dict[str, Any], **sections: Any) -> np.ndarray:
    folder.mkdir()
    shutil.copy(PROGRAM.with_name(f"{MODULE}.py"), folder)
    content = {"name": "loaded", **job(input=source, **sections)}
    report = psfleet.train(content, out=folder / "run", program_folder=folder)
    assert (report.status, report.final_step) == ("done", content["train"]["steps"]), report.error
    return weights(folder / "run")


def test_a_killed_loader_costs_no_step_and_changes_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 200
    train = {**job()["train"], "steps": steps}
    expected = trained(tmp_path / "own", {"from": "worker"}, train=train)
    # A proxy for the outside, which connects nobody to a loader.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    loaded = job(input={"from": "loaders", "loaders": 2}, train=train)
    with training(tmp_path, step_secs=0.1, programs=(MODULE,), **loaded) as fleet:
        fleet.wait_for_step(2)
        fleet.kill("loader", 0)
        fleet.wait_for(lambda: fleet.entries("loader_lost"), START_SECS, "worker 0 to lose its loader")
        fleet.wait_for(lambda: fleet.entries("restarted"), START_SECS, "the chief to find the restarted loader")
        fleet.gates.hurry()
        report = fleet.done()
        lost = [len(fleet.entries("loader_lost", index=index)) for index in (0, 1)]
        codes = [entry for index in (0, 1) for entry in fleet.entries("failed", "loader", index)]
    assert not codes, codes
    assert report.restarts == 1
    restarted = ["loader", 0, "restarted", "killed by SIGKILL"]
    assert [[event.role, event.index, event.kind, event.cause] for event in report.events] == [restarted]
    assert lost == [1, 0], "loaders end after the workers"
    assert (report.gradients.pushed, report.gradients.used) == (2 * steps, 2 * steps)
    assert np.array_equal(weights(fleet.out), expected)


@pytest.mark.extended
def test_a_frozen_loader_costs_no_step_and_changes_no_weight(tmp_path: Path) -> None:
    expected = trained(tmp_path / "own", {"from": "worker"})
    loaded = job(input={"from": "loaders", "loaders": 2})
    with training(tmp_path, step_secs=0.02, programs=(MODULE,), **loaded) as fleet:
        fleet.wait_for_step(5)
        freeze(fleet, 0)
        report = fleet.done()
        lost = [len(fleet.entries("loader_lost", index=index)) for index in (0, 1)]
    assert lost == [1, 0]
    frozen = ["loader", 0, "unresponsive", "it has not answered for 15 s"]
    assert [[event.role, event.index, event.kind, event.cause] for event in report.events] == [frozen]
    assert (report.gradients.pushed, report.gradients.used) == (80, 80)
    assert np.array_equal(weights(fleet.out), expected)


@pytest.mark.extended
def test_a_run_whose_loaders_do_not_answer_ends_by_its_deadline_and_names_them(tmp_path: Path) -> None:
    loaded = job(input={"from": "loaders", "loaders": 2}, deadlines={"start_secs": 6})
    with training(tmp_path, step_secs=0.02, programs=(MODULE,), **loaded) as fleet:
        fleet.wait_for_step(5)
        freeze(fleet, 0)
        freeze(fleet, 1)
        assert fleet.end() == LOST_PEERS, fleet.tails()
        found = re.search(r"6 s waiting for loader [01] at 127.0.0.1:\d+ or another one", fleet.screen.read_text())
        ended = time.time()
        waited = ended - max(entry["time"] for index in (0, 1) for entry in fleet.entries("loader_lost", index=index))
    assert found, "the message names the loader"
    assert waited < 6 + END_SECS


def test_a_loader_whose_restarts_are_used_up_ends_the_run_and_is_named(tmp_path: Path) -> None:
    loaded = job(
        input={"from": "loaders"}, fleet={"ps": 1, "workers": 1, "max_restarts": 0}, deadlines={"start_secs": 3}
    )
    with training(tmp_path, step_secs=0.02, programs=(MODULE,), **loaded) as fleet:
        fleet.wait_for_step(5)
        fleet.kill("loader", 0)
        assert fleet.end() == LOST_PEERS, fleet.tails()
        assert "process loader 0: killed by SIGKILL" in fleet.screen.read_text(), fleet.tails()


def test_data_that_call_python_end_the_run_as_a_failed_program(tmp_path: Path) -> None:
    with training(tmp_path, input={"from": "loaders"}, fleet={"workers": 1}) as fleet:
        assert fleet.end() == PROGRAM_FAILED, fleet.tails()
        assert "calls Python (from_generator" in fleet.screen.read_text(), fleet.tails()


def freeze(fleet: Fleet, index: int) -> None:
    """Stops a loader until the fleet under test is ended."""
    pid = fleet.pid("loader", index)
    assert pid is not None, fleet.tails()
    os.kill(pid, signal.SIGSTOP)
