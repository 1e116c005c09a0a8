"""Workers that divide their batches over several devices train as with one; here these are virtual CPU devices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Psfleet, commands
from support.replay import assert_perceptron
from support.rows import first_rows

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors

pytestmark = pytest.mark.usefixtures("launches_forked")
PROGRAMS = Path(__file__).parents[1] / "support" / "programs"
BATCH_SIZE, STEPS = 16, 12
ADAM: dict[str, Any] = {"name": "adam", "learning_rate": 0.01}

CASES: list[dict[str, Any]] = [
    {"update": {"mode": "sync"}, "fleet": {"ps": 2, "workers": 2}},
    {"update": {"mode": "sync", "replication": "in_graph"}, "fleet": {"ps": 1, "workers": 2}},
    {"update": {"mode": "averaging", "local_steps": 3}, "fleet": {"ps": 2, "workers": 2}},
    {"update": {"mode": "async"}, "fleet": {"ps": 1, "workers": 1}},
    {"update": {"mode": "ssp", "bound": 1}, "fleet": {"ps": 2, "workers": 1}},
]


def job(**sections: Any) -> dict[str, Any]:
    return {
        "name": "towers",
        "program": "exact_graph_program:build",
        "optimizer": ADAM,
        "train": {"steps": STEPS, "batch_size": BATCH_SIZE},
        "device": {"replicas": 2, "virtual_cpus": 2, "intra_op_threads": 1, "log_placement": True},
        **sections,
    }


@pytest.fixture
def psfleet_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Psfleet]:
    monkeypatch.chdir(tmp_path)
    with commands(monkeypatch, capsys) as run:
        yield run


@pytest.mark.parametrize("sections", first_rows(CASES, 1), ids=["sync", "in_graph", "averaging", "async", "ssp"])
def test_weights_and_state_are_those_of_workers_with_one_device(
    sections: dict[str, Any], tmp_path: Path, psfleet_command: Psfleet
) -> None:
    """Both towers of each worker have the same operations of the program, which `psfleet logs --placement` shows."""
    out, workers, update = tmp_path / "runs" / "towers", sections["fleet"]["workers"], sections["update"]
    report = psfleet.train(job(**sections), out=out, program_folder=PROGRAMS)
    assert (report.status, report.final_step) == ("done", STEPS), report.error
    newest = store.newest(out / "checkpoints")
    assert newest is not None
    options = {"workers": workers, "batch_size": BATCH_SIZE, "steps": STEPS, "local_steps": update.get("local_steps")}
    assert_perceptron(read_tensors(newest), ADAM, **options)
    rows = json.loads(psfleet_command("logs", "towers", "--placement", "--json").out)
    tanh: Counter[str] = Counter()
    for row in rows:
        tanh[row["device"].partition("/task:")[2]] += row["operations"].get("TanhGrad", 0)
    assert {device: tanh[device] for device in tanh if device.endswith("CPU:1")} == {
        f"{index}/device:CPU:1": tanh[f"{index}/device:CPU:0"] for index in range(workers)
    }
    assert all(tanh[f"{index}/device:CPU:1"] for index in range(workers))


def test_more_towers_than_devices_end_the_run_with_both_numbers(tmp_path: Path) -> None:
    report = psfleet.train(job(device={"replicas": 4}), out=tmp_path, program_folder=PROGRAMS)
    message = "worker 0: device.replicas is 4, but worker 0 has 1 CPU and 0 GPUs: expected at most 1, or device.virtual"
    assert (report.status, report.exit_code) == ("failed", 78)
    assert (report.error or "").startswith(message)
