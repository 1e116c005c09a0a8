"""Sync mode through faults: the weights of a run that lost any of its processes are those of a run without a fault."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import gan_replay
from support.fleet_faults import cause
from support.local_fleet import START_SECS, Fleet, training
from support.numpy_optimizers import rule
from support.programs import exact_graph_program, exact_keras_program
from support.programs import tiny_gan_program as tiny
from support.replay import KerasReplica, Weights, perceptron_gradient, replay
from support.rows import first_rows

from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.history import History
from psfleet.report.reductions import ReductionLog

WORKERS = 2
STEPS = 60
BATCH_SIZE = 4
PACE_SECS = 0.05
STEP_SECS = 1.5
"""`deadlines.step_secs`: a process that is stopped for longer is taken for lost."""
BUCKET_BYTES = 4096
"""The parameters of a program with one loss are in several segments on each ps."""
GAP_STEPS = 8
"""At most so many steps between a recovery and the next fault."""
MAX_DIFFERENCE = 1e-5
OPTIMIZER: dict[str, Any] = {"name": "momentum", "learning_rate": 0.05}
# No loss is so much better than the first one: the rate is halved after each second evaluation, but only twice.
PLATEAU: dict[str, Any] = {
    "kind": "plateau",
    "metric": "loss",
    "direction": "minimize",
    "factor": 0.5,
    "patience": 2,
    "min_delta": 1000,
    "min_learning_rate": OPTIMIZER["learning_rate"] / 4,
}
GAN_OPTIMIZERS = {"discriminator": {"name": "adam", "learning_rate": 0.02}, "generator": OPTIMIZER}
FAULTS_IN_A_RUN = 2


@pytest.mark.parametrize(
    ("front_end", "num_ps", "placing"),
    first_rows(
        [
            ("graph", 2, "between_graph"),
            ("graph", WORKERS, "colocated"),
            ("keras", 1, "between_graph"),
            ("gan", 2, "between_graph"),
            ("graph", 2, "in_graph"),
            ("gan", 2, "in_graph"),
            ("keras", WORKERS, "colocated"),
            ("gan", WORKERS, "colocated"),
            ("graph", 2, "TCP"),
        ],
        2,
    ),
)
def test_whatever_is_killed_or_stopped_the_weights_are_those_of_a_run_without_a_fault(
    front_end: str, num_ps: int, placing: str, tmp_path: Path
) -> None:
    """The graph program has a plateau schedule: each update has the rate of its step on every ps, however often."""
    is_reduced = front_end == "graph"
    seed = random.SystemRandom().randrange(1000)
    print(f"random seed {seed}")
    chance = random.Random(seed)
    with training(
        tmp_path,
        step_secs=PACE_SECS,
        programs=["paced_exact_program", "exact_graph_program", "exact_keras_program", "tiny_gan_program"],
        options={"front_end": front_end, "batch_size": BATCH_SIZE},
        fleet={
            "ps": num_ps,
            "workers": WORKERS,
            "colocate": placing == "colocated",
            "unix_sockets": placing != "TCP",
        },
        **rules(front_end),
        update={
            "replication": "in_graph" if placing == "in_graph" else "between_graph",
            "bucket_bytes": BUCKET_BYTES,
        },
        evaluate={"every_steps": 5 if is_reduced else None},
        train={"steps": STEPS, "batch_size": BATCH_SIZE, "alternate": tiny.ALTERNATE if front_end == "gan" else None},
        checkpoint={"every_steps": 5},
        deadlines={"step_secs": STEP_SECS},
    ) as fleet:
        fleet.wait_for_step(5)
        # The messages of `gan` are too small.
        assert shares_memory(fleet) == (front_end != "gan" and placing not in ("TCP", "in_graph"))
        for role, index, number in chance.sample(faults(0 if placing == "colocated" else num_ps), FAULTS_IN_A_RUN):
            fleet.wait_for_step(fleet.step() + chance.randint(1, GAP_STEPS))
            cause(fleet, role, index, number)
        log = ReductionLog(fleet.out / ReductionLog.FILE_NAME)
        if is_reduced:
            fleet.wait_for(log.made, START_SECS, "a reduction of the learning rate")
        fleet.gates.hurry()
        fleet.done()
        found = read_tensors(fleet.checkpoint())

    def rate(step: int) -> float:
        return float(OPTIMIZER["learning_rate"] * 0.5 ** sum(each.step <= step for each in log.made()))

    points = History(fleet.out / History.FILE_NAME).curve()
    if front_end != "gan":
        assert [point.learning_rate for point in points] == pytest.approx([rate(point.step - 1) for point in points])
    expected = replayed(front_end, rate)
    differences = {name: float(np.abs(found[name] - value).max()) for name, value in expected.items()}
    assert max(differences.values()) <= MAX_DIFFERENCE, f"seed {seed}: {differences}"


def shares_memory(fleet: Fleet) -> bool:
    """Whether the chief has memory for messages in common with a ps."""
    return "psfleet-exchange" in Path(f"/proc/{fleet.pid('worker', 0)}/maps").read_text()


def rules(front_end: str) -> dict[str, Any]:
    """The sections of the job with the optimizer, or those of several losses."""
    if front_end == "gan":
        return {"optimizer": None, "optimizers": GAN_OPTIMIZERS}
    schedule = PLATEAU if front_end == "graph" else {"kind": "constant"}
    return {"optimizer": {**OPTIMIZER, "schedule": schedule}}


def faults(num_ps: int) -> list[tuple[str, int, signal.Signals]]:
    """Each process of the fleet, killed or stopped.

    Args:
        num_ps: Of the processes that are only a ps.
    """
    processes = [("worker", index) for index in range(WORKERS)] + [("ps", index) for index in range(num_ps)]
    return [(*process, number) for process in processes for number in (signal.SIGKILL, signal.SIGSTOP)]


def replayed(front_end: str, rate: Callable[[int], float]) -> Weights:
    """All tensors after the steps of one process."""
    if front_end == "gan":
        return gan_replay.replayed(GAN_OPTIMIZERS, tiny.ALTERNATE, WORKERS, BATCH_SIZE, STEPS)
    options: dict[str, Any] = {"workers": WORKERS, "batch_size": BATCH_SIZE, "steps": STEPS}
    options |= {"rule": lambda: rule(OPTIMIZER), "rate": rate}
    if front_end == "graph":
        initial = exact_graph_program.initial_weights() | exact_graph_program.initial_state()
        return replay(initial, perceptron_gradient, exact_graph_program.data(), **options)
    program = exact_keras_program.build()
    replica = KerasReplica(program.model(), program.loss)
    return replay(
        replica.values(),
        lambda weights, worker, batch: replica.gradient(weights, batch),
        exact_keras_program.data(),
        **options,
    )
