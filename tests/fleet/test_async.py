"""Async mode makes an update of each gradient, counts to the unit what it used and dropped, and warms up alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.losses import lost_peers
from support.numpy_optimizers import rule
from support.programs import exact_graph_program
from support.replay import perceptron_gradient, replay

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.reductions import ReductionLog
from psfleet.report.schema import EventLog

pytestmark = pytest.mark.usefixtures("launches_forked")
PROGRAMS = Path(__file__).parents[1] / "support" / "programs"

STEPS = 240
BATCH_SIZE = 4
WARMUP_STEPS = 20
COMPARED_STEP = 80
MAX_DIFFERENCE = 1e-5


@pytest.mark.extended
def test_gradients_that_are_stale_are_dropped_and_counted(ps_addresses: list[str], tmp_path: Path) -> None:
    """Both workers begin on the same weights, so with bound 0 the ps has to drop one of their first gradients."""
    workers, num_ps = 2, 2
    report = trained(
        tmp_path,
        fleet={"ps": num_ps, "workers": workers, "ps_addresses": ps_addresses},
        update={"mode": "async", "stale": {"policy": "drop", "bound": 0}},
        optimizer={"name": "adam", "learning_rate": 0.01},
    )
    check_counts(report, workers, num_ps)
    assert report.gradients.dropped >= workers - 1
    # A fresh gradient is dropped, too, when it reaches a ps that has made its final step before the other has.
    assert report.gradients.used <= report.staleness["0"], "a stale gradient was used"
    assert set(report.gradients.per_worker) == {str(worker) for worker in range(workers)}


@pytest.mark.extended
def test_the_first_steps_are_the_chiefs_alone_and_later_every_worker_counts(
    ps_addresses: list[str], tmp_path: Path
) -> None:
    """The checkpoint at the last step of the warm-up holds what one process makes of the chief's batches."""
    workers = 2
    optimizer = {"name": "momentum", "learning_rate": 0.05}
    report = trained(
        tmp_path,
        fleet={"ps": 1, "workers": workers, "ps_addresses": ps_addresses[:1]},
        update={"mode": "async", "stale": {"policy": "lower_rate"}, "warmup_steps": WARMUP_STEPS},
        optimizer=optimizer,
        options={"alone": WARMUP_STEPS * BATCH_SIZE},
        checkpoint={"every_steps": WARMUP_STEPS, "keep": 2 * STEPS // WARMUP_STEPS},
    )
    check_counts(report, workers, num_ps=1)
    assert report.gradients.dropped < workers, "no gradient but the last of each other worker comes after the target"
    by_worker = report.gradients.per_worker
    assert by_worker["0"].used > WARMUP_STEPS
    assert by_worker["1"].used > 0
    x, label = exact_graph_program.data()
    expected = replay(
        exact_graph_program.initial_weights() | exact_graph_program.initial_state(),
        perceptron_gradient,
        (x[::workers], label[::workers]),
        workers=1,
        batch_size=BATCH_SIZE,
        steps=WARMUP_STEPS,
        rule=lambda: rule(optimizer),
        rate=lambda step: 0.05,
    )
    warmed_up = read_manifest(tmp_path / "out" / "checkpoints" / f"{WARMUP_STEPS:08}-g{report.generation}")
    for name, value in read_tensors(warmed_up).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=MAX_DIFFERENCE, err_msg=name)


@pytest.mark.extended
def test_a_plateau_schedule_reduces_the_rate_from_one_step_on_at_every_ps(
    ps_addresses: list[str], tmp_path: Path
) -> None:
    """One worker makes the updates of a replay, if both ps have the rate of each step."""
    optimizer = {"name": "momentum", "learning_rate": 0.05}
    # No loss is so much better than the first one.
    plateau = {"kind": "plateau", "metric": "loss", "direction": "minimize", "factor": 0.5, "min_delta": 1000}
    out = tmp_path / "out"
    report = trained(
        tmp_path,
        fleet={"ps": 2, "workers": 1, "ps_addresses": ps_addresses},
        update={"mode": "async"},
        optimizer={**optimizer, "schedule": {**plateau, "patience": 2}},
        options={"events": str(out / EventLog.FILE_NAME)},
        evaluate={"every_steps": 10},
        checkpoint={"every_steps": COMPARED_STEP, "keep": STEPS // COMPARED_STEP + 1},
    )
    made = ReductionLog(out / ReductionLog.FILE_NAME).made()
    assert min(each.step for each in made) < COMPARED_STEP
    expected = replay(
        exact_graph_program.initial_weights() | exact_graph_program.initial_state(),
        perceptron_gradient,
        exact_graph_program.data(),
        workers=1,
        batch_size=BATCH_SIZE,
        steps=COMPARED_STEP,
        rule=lambda: rule(optimizer),
        rate=lambda step: 0.05 * 0.5 ** sum(each.step <= step for each in made),
    )
    saved = read_manifest(out / "checkpoints" / f"{COMPARED_STEP:08}-g{report.generation}")
    for name, value in read_tensors(saved).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=MAX_DIFFERENCE, err_msg=name)


def check_counts(report: psfleet.Report, workers: int, num_ps: int) -> None:
    """Every ps reached the target, none lost count, and the workers were not alone."""
    assert len(report.gradients.per_ps) == num_ps
    for shard, counts in enumerate(report.gradients.per_ps):
        assert counts.used == STEPS, f"ps {shard} used {counts.used} gradients for {STEPS} steps"
        assert counts.pushed == counts.used + counts.dropped
    gradients = report.gradients
    assert gradients.pushed == sum(worker.pushed for worker in gradients.per_worker.values())
    assert gradients.used == sum(worker.used for worker in gradients.per_worker.values())
    assert sum(report.staleness.values()) == gradients.pushed, "the ps did not look at every gradient"
    assert sum(count for late, count in report.staleness.items() if int(late) > 0) >= workers - 1


def trained(tmp_path: Path, options: dict[str, Any] | None = None, **sections: Any) -> psfleet.Report:
    """Runs the gated program to its end; the report."""
    gate = tmp_path / "gate"
    gate.mkdir()
    job = {
        "name": "async",
        "program": "gated_program:build",
        "options": {"gate": str(gate), **(options or {})},
        "train": {"steps": STEPS, "batch_size": BATCH_SIZE},
        "device": {"intra_op_threads": 1},
        **sections,
    }
    report = psfleet.train(job, out=tmp_path / "out", program_folder=PROGRAMS)
    assert (report.status, report.final_step) == ("done", STEPS), report.error
    assert not lost_peers(tmp_path / "out")
    return report
