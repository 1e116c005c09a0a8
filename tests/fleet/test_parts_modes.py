"""Replicas of two parts in modes other than sync, exact as ever, and resumed with another number of parts."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.local_fleet import training
from support.replay import assert_perceptron

from psfleet.checkpoint.tensors import read_tensors

STEPS, LOCAL_STEPS = 48, 3
BATCH_SIZE = 4
ADAM: dict[str, Any] = {"name": "adam", "learning_rate": 0.01}
EXACT: dict[str, Any] = {
    "programs": ["paced_exact_program", "exact_graph_program"],
    "options": {"front_end": "graph", "batch_size": BATCH_SIZE},
    "optimizer": ADAM,
    "train": {"steps": STEPS, "batch_size": BATCH_SIZE},
}

pytestmark = pytest.mark.extended


@pytest.mark.parametrize(
    "update",
    [{"mode": "async"}, {"mode": "async", "replication": "in_graph"}, {"mode": "ssp", "bound": 1}],
    ids=["async", "async in one graph", "ssp"],
)
def test_one_replica_without_a_quorum_gives_the_weights_of_one_process(update: dict[str, Any], tmp_path: Path) -> None:
    """It makes each update of its own newest weights, so none is stale."""
    with training(tmp_path, step_secs=0.0, fleet={"ps": 2, "workers": 2, "parts": 2}, update=update, **EXACT) as run:
        report = run.done()
        found = read_tensors(run.checkpoint())
    assert (report.gradients.used, report.gradients.dropped) == (STEPS, 0)
    assert_perceptron(found, ADAM, workers=1, batch_size=BATCH_SIZE, steps=STEPS)


@pytest.mark.parametrize("averages_slots", [True, False], ids=["slots", "no slots"])
def test_averaging_gives_the_weights_of_as_many_processes_as_replicas(averages_slots: bool, tmp_path: Path) -> None:
    update = {"mode": "averaging", "local_steps": LOCAL_STEPS, "average_slots": averages_slots}
    with training(tmp_path, step_secs=0.0, fleet={"ps": 2, "workers": 4, "parts": 2}, update=update, **EXACT) as run:
        run.done()
        found = read_tensors(run.checkpoint())
    rounds = {"steps": STEPS, "local_steps": LOCAL_STEPS, "averages_slots": averages_slots}
    assert_perceptron(found, ADAM, workers=2, batch_size=BATCH_SIZE, **rounds)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)], ids=["1 to 2", "2 to 1"])
def test_a_stopped_run_resumes_with_another_number_of_parts(before: int, after: int, tmp_path: Path) -> None:
    """One replica each time, which reads the same batches: the weights are those of a run that was not stopped."""
    with training(tmp_path, step_secs=0.1, fleet={"ps": 2, "workers": before, "parts": before}, **EXACT) as run:
        run.wait_for_step(5)
        run.launcher.send_signal(signal.SIGINT)
        assert run.end() == 128 + signal.SIGINT, run.tails()
        assert 5 <= run.checkpoint().step < STEPS
    with training(tmp_path, step_secs=0.0, fleet={"ps": 1, "workers": after, "parts": after}, **EXACT) as run:
        run.done()
        found = read_tensors(run.checkpoint())
    assert_perceptron(found, ADAM, workers=1, batch_size=BATCH_SIZE, steps=STEPS)
