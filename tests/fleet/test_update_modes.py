"""Averaging and ssp mode through faults, in real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.local_fleet import START_SECS, Fleet, training
from support.replay import assert_perceptron

from psfleet.checkpoint.tensors import read_tensors

WORKERS = 2
ROUNDS, LOCAL_STEPS = 16, 3
BATCH_SIZE = 4
ADAM: dict[str, Any] = {"name": "adam", "learning_rate": 0.01}


@pytest.mark.extended
def test_averaging_through_the_loss_of_each_role_gives_the_weights_of_a_run_without_a_fault(tmp_path: Path) -> None:
    """With slots and scalars: a worker's successor, and a generation that starts at a checkpoint, repeat a round."""
    with training(
        tmp_path,
        step_secs=0.08,
        programs=["paced_exact_program", "exact_graph_program", "exact_keras_program"],
        options={"front_end": "graph", "batch_size": BATCH_SIZE},
        fleet={"ps": 2, "workers": WORKERS},
        update={"mode": "averaging", "local_steps": LOCAL_STEPS},
        optimizer=ADAM,
        train={"steps": ROUNDS * LOCAL_STEPS, "batch_size": BATCH_SIZE},
        checkpoint={"every_steps": 2 * LOCAL_STEPS},
        deadlines={"step_secs": 2},
    ) as fleet:
        for role, index in (("worker", 1), ("ps", 1), ("worker", 0)):
            fleet.wait_for_step(fleet.step() + LOCAL_STEPS)
            fleet.kill(role, index)
            fleet.wait_for_progress()
        fleet.gates.hurry()
        fleet.done()
        found = read_tensors(fleet.checkpoint())
    rounds = {"steps": ROUNDS * LOCAL_STEPS, "local_steps": LOCAL_STEPS}
    assert_perceptron(found, ADAM, workers=WORKERS, batch_size=BATCH_SIZE, **rounds)


@pytest.mark.extended
def test_averaging_without_slots_gives_the_weights_of_workers_that_keep_their_own(tmp_path: Path) -> None:
    with training(
        tmp_path,
        step_secs=0.0,
        programs=["paced_exact_program", "exact_graph_program"],
        options={"front_end": "graph", "batch_size": BATCH_SIZE},
        fleet={"ps": 2, "workers": WORKERS},
        update={"mode": "averaging", "local_steps": LOCAL_STEPS, "average_slots": False},
        optimizer=ADAM,
        train={"steps": ROUNDS * LOCAL_STEPS, "batch_size": BATCH_SIZE},
    ) as fleet:
        fleet.done()
        found = read_tensors(fleet.checkpoint())
    rounds = {"steps": ROUNDS * LOCAL_STEPS, "local_steps": LOCAL_STEPS, "averages_slots": False}
    assert_perceptron(found, ADAM, workers=WORKERS, batch_size=BATCH_SIZE, **rounds)


@pytest.mark.extended
def test_in_ssp_mode_a_frozen_worker_holds_up_nobody_and_trains_again_when_it_comes_back(tmp_path: Path) -> None:
    with training(
        tmp_path,
        step_secs=0.1,
        fleet={"ps": 2, "workers": WORKERS},
        update={"mode": "ssp", "bound": 1},
        train={"steps": 1000, "batch_size": 1},
    ) as fleet:
        fleet.wait_for_step(10)
        frozen = fleet.pid("worker", 1)
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        try:
            fleet.wait_for_step(fleet.step() + 20)
        finally:
            os.kill(frozen, signal.SIGCONT)
        await_pushes(fleet)
        fleet.kill("worker", 1)
        fleet.wait_for(lambda: fleet.pid("worker", 1) not in (None, frozen), START_SECS, "worker 1 to be there again")
        await_pushes(fleet)
        fleet.gates.hurry()
        report = fleet.done()
    assert report.restarts == 1
    assert sum(report.staleness.values()) == report.gradients.pushed
    # Between pulling and pushing, the other worker makes up to 2 * bound + 1 updates; more only around the freeze.
    late = sum(count for staleness, count in report.staleness.items() if int(staleness) > 3)
    assert late <= 4, report.staleness


def await_pushes(fleet: Fleet) -> None:
    """Waits for a few gradients of worker 1."""
    before = pushes(fleet)
    fleet.wait_for(lambda: pushes(fleet) > before + 3, START_SECS, "gradients of worker 1")


def pushes(fleet: Fleet) -> int:
    """Gradients that ps 0 has received from worker 1."""
    states = fleet.shards()
    return int(states[0].pushed[1]) if states else 0


@pytest.mark.extended
def test_a_stopped_run_resumes_with_other_numbers_of_processes_and_in_another_mode(tmp_path: Path) -> None:
    """A stop comes at the end of a round; the slots of averaging mode are those of any other."""
    steps, local_steps = 200, 5
    averaging = {"mode": "averaging", "local_steps": local_steps}
    train = {"steps": steps, "batch_size": 1}
    with training(tmp_path, fleet={"ps": 1, "workers": 2}, update=averaging, train=train) as fleet:
        fleet.wait_for_step(2 * local_steps)
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end() == 128 + signal.SIGINT, fleet.tails()
        stopped = fleet.checkpoint()
        assert (stopped.step % local_steps, 0 < stopped.step < steps) == (0, True)
    with training(tmp_path, fleet={"ps": 2, "workers": 3}, update={"mode": "ssp", "bound": 0}, train=train) as fleet:
        fleet.gates.hurry()
        report = fleet.done()
    assert report.gradients.used == steps - stopped.step
    assert not [each for each in fleet.log("ps", 0) if "starts without state" in each["message"]]
