"""Stops and losses of processes in averaging and ssp mode, in real processes: nothing is counted twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.local_fleet import Fleet, training
from support.replay import assert_perceptron

from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.schema import Report

WORKERS, BATCH_SIZE = 2, 4
ROUNDS, LOCAL_STEPS = 12, 10
STOP_SECS = 10.0
"""From a signal to the end: a round takes half a second."""
ADAM: dict[str, Any] = {"name": "adam", "learning_rate": 0.01}


def signalled(fleet: Fleet, role: str, index: int, number: signal.Signals) -> None:
    pid = fleet.pid(role, index)
    assert pid is not None, fleet.tails()
    os.kill(pid, number)


def check_counts(report: Report, workers: int = WORKERS) -> None:
    """What holds for the counts of any run in which each ps has applied or dropped each push."""
    assert len(report.gradients.per_worker) == workers
    for counts in (report.gradients, *report.gradients.per_ps):
        assert counts.pushed == counts.used + counts.dropped, report.gradients
    assert report.gradients.pushed == sum(each.pushed for each in report.gradients.per_worker.values())
    assert report.gradients.used == sum(each.used for each in report.gradients.per_worker.values())


@pytest.mark.extended
@pytest.mark.parametrize("role", ["chief", "launcher"])
def test_averaging_that_is_stopped_in_the_middle_of_a_round_ends_with_it_and_resumes_exactly(
    tmp_path: Path, role: str
) -> None:
    sections: dict[str, Any] = {
        "step_secs": 0.05,
        "programs": ["paced_exact_program", "exact_graph_program", "exact_keras_program"],
        "options": {"front_end": "graph", "batch_size": BATCH_SIZE},
        "fleet": {"ps": 2, "workers": WORKERS},
        "update": {"mode": "averaging", "local_steps": LOCAL_STEPS},
        "optimizer": ADAM,
        "train": {"steps": ROUNDS * LOCAL_STEPS, "batch_size": BATCH_SIZE},
        "checkpoint": {"every_steps": 1000},
    }
    with training(tmp_path, **sections) as fleet:
        fleet.wait_for_step(2 * LOCAL_STEPS)
        # Progress is logged at the end of a round: all workers are in the next one.
        if role == "chief":
            signalled(fleet, "worker", 0, signal.SIGTERM)
        else:
            fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end(STOP_SECS) == 128 + signal.SIGTERM, fleet.tails()
        stopped, report = fleet.checkpoint(), fleet.report()
        assert (report.status, report.final_step) == ("stopped", stopped.step)
        assert stopped.step % LOCAL_STEPS == 0
        assert 2 * LOCAL_STEPS <= stopped.step < ROUNDS * LOCAL_STEPS
        check_counts(report)
        assert [each.used for each in report.gradients.per_ps] == [WORKERS * stopped.step // LOCAL_STEPS] * 2
    with training(tmp_path, **sections) as fleet:
        fleet.gates.hurry()
        report = fleet.done()
        found = read_tensors(fleet.checkpoint())
    check_counts(report)
    assert report.gradients.used == WORKERS * (ROUNDS - stopped.step // LOCAL_STEPS)
    rounds = {"steps": ROUNDS * LOCAL_STEPS, "local_steps": LOCAL_STEPS}
    assert_perceptron(found, ADAM, workers=WORKERS, batch_size=BATCH_SIZE, **rounds)


@pytest.mark.extended
def test_ssp_through_the_loss_of_each_role_counts_each_gradient_once_and_resumes_after_a_stop(tmp_path: Path) -> None:
    steps = 1000
    sections: dict[str, Any] = {
        "step_secs": 0.05,
        "fleet": {"ps": 2, "workers": WORKERS},
        "update": {"mode": "ssp", "bound": 1},
        "train": {"steps": steps, "batch_size": 1},
        "checkpoint": {"every_steps": 20},
        "deadlines": {"step_secs": 5},
    }
    with training(tmp_path, **sections) as fleet:
        fleet.wait_for_step(10)
        for role, index in (("worker", 1), ("worker", 0), ("ps", 0), ("ps", 1)):
            fleet.kill(role, index)
            fleet.wait_for_progress()
            fleet.wait_for_step(fleet.step() + 30)
        generation = fleet.shards()[0].generation
        assert generation == 3, "one more for each loss of a ps"
        signalled(fleet, "worker", 1, signal.SIGTERM)
        fleet.wait_for_step(fleet.step() + 20)
        signalled(fleet, "worker", 0, signal.SIGTERM)
        assert fleet.end(STOP_SECS) == 128 + signal.SIGTERM, fleet.tails()
        report, stopped = fleet.report(), fleet.checkpoint().step
        assert (report.status, report.final_step, report.generation) == ("stopped", stopped, generation)
        check_counts(report)
        since = report.gradients.since_step
        assert since is not None
        assert [each.used for each in report.gradients.per_ps] == [stopped - since] * 2
        assert sum(report.staleness.values()) == report.gradients.pushed
        assert report.restarts == 5
        assert [event.role for event in report.events if event.steps_lost] in (["ps", "ps"], ["ps"], [])
    with training(tmp_path, **sections) as fleet:
        fleet.gates.hurry()
        report = fleet.done()
    check_counts(report)
    assert report.gradients.used == steps - stopped
