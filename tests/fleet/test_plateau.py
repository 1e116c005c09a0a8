"""A plateau schedule is exact: each update has the recorded rate of its step on every ps, whatever dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_fleet import START_SECS, training
from support.numpy_optimizers import rule
from support.programs import exact_graph_program
from support.replay import perceptron_gradient, replay

from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.reductions import ReductionLog
from psfleet.report.schema import History

WORKERS, STEPS, BATCH_SIZE, RATE = 2, 120, 4, 0.05
MAX_DIFFERENCE = 1e-5
OPTIMIZER: dict[str, Any] = {"name": "momentum", "learning_rate": RATE}
# No loss is so much better than the first one: after each second evaluation the rate is halved, but only twice.
SCHEDULE: dict[str, Any] = {
    "kind": "plateau",
    "metric": "loss",
    "direction": "minimize",
    "factor": 0.5,
    "patience": 2,
    "min_delta": 1000,
    "min_learning_rate": RATE / 4,
}


def test_the_rate_is_reduced_at_the_recorded_steps_although_the_chief_and_a_ps_are_killed(tmp_path: Path) -> None:
    """After the first reduction: the fleet trains all steps again, the second reduction is made by another chief."""
    with training(
        tmp_path,
        programs=["paced_exact_program", "exact_graph_program", "exact_keras_program"],
        options={"front_end": "graph", "batch_size": BATCH_SIZE},
        fleet={"ps": 2, "workers": WORKERS},
        optimizer={**OPTIMIZER, "schedule": SCHEDULE},
        train={"steps": STEPS, "batch_size": BATCH_SIZE},
        evaluate={"every_steps": 5},
        checkpoint={"every_steps": STEPS},
    ) as fleet:
        log = ReductionLog(fleet.out / ReductionLog.FILE_NAME)
        first = fleet.wait_for(log.made, START_SECS, "the first reduction")[0]
        fleet.wait_for_step(first.step + 1)
        fleet.kill("ps", 1)
        fleet.kill("worker", 0)
        fleet.wait_for(lambda: len(log.made()) == 2, START_SECS, "the second reduction")
        fleet.gates.hurry()
        report = fleet.done()
        found = read_tensors(fleet.checkpoint())
    steps = [each.step for each in log.made()]
    assert [each.learning_rate for each in log.made()] == [RATE / 2, RATE / 4]
    assert report.restarts == 2

    def rate(step: int) -> float:
        return RATE * 0.5 ** sum(each <= step for each in steps)

    recorded = History(fleet.out / History.FILE_NAME).curve()
    assert [point.learning_rate for point in recorded] == pytest.approx([rate(point.step - 1) for point in recorded])
    assert recorded[-1].learning_rate == RATE / 4
    initial = exact_graph_program.initial_weights() | exact_graph_program.initial_state()
    expected = replay(
        initial,
        perceptron_gradient,
        exact_graph_program.data(),
        workers=WORKERS,
        batch_size=BATCH_SIZE,
        steps=STEPS,
        rule=lambda: rule(OPTIMIZER),
        rate=rate,
    )
    differences = {name: float(np.abs(found[name] - value).max()) for name, value in expected.items()}
    assert max(differences.values()) <= MAX_DIFFERENCE, (steps, differences)
