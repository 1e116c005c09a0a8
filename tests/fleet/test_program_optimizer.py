"""A fleet trains with an optimizer of the program's own as plain Keras does, also across a change of the ps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.programs import exact_keras_program, own_optimizer_program
from support.replay import batch

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.schema import Report

pytestmark = pytest.mark.usefixtures("launches_forked")
TESTS = Path(__file__).parents[1]

BATCH_SIZE = 16
MAX_DIFFERENCE = 1e-5


@pytest.mark.extended
def test_fifty_steps_with_an_optimizer_of_the_program_are_those_of_keras(
    ps_addresses: list[str], tmp_path: Path
) -> None:
    """Slots and the count of updates, which the optimizer uses, are restored on another number of ps."""
    train(ps_addresses, 30, tmp_path)
    resumed = train(ps_addresses[:1], 50, tmp_path)
    changed = [change.partition(" ")[0] for change in resumed.attempts[-1].changes]
    assert changed == ["fleet.ps", "fleet.ps_addresses", "train.steps"]
    newest = store.newest(tmp_path / "checkpoints")
    assert newest is not None
    assert (newest.step, newest.optimizer, newest.slots) == (50, "program.Cautious", ("move", "size"))
    assert newest.extra["job"]["optimizer"]["learning_rate"] == own_optimizer_program.RATE
    found, expected = read_tensors(newest), by_keras(50)
    difference = max(float(np.abs(found[name] - value).max()) for name, value in expected.items())
    assert difference <= MAX_DIFFERENCE, f"off by {difference:.1e}"


def train(ps_addresses: list[str], steps: int, out: Path) -> Report:
    """Starts or resumes the run."""
    job = {
        "name": "own-optimizer",
        "program": "support.programs.own_optimizer_program:build",
        "fleet": {"ps": len(ps_addresses), "workers": 1, "ps_addresses": ps_addresses},
        "update": {"bucket_bytes": 4096},
        "optimizer": {"name": "program"},
        "train": {"steps": steps, "batch_size": BATCH_SIZE},
        "device": {"intra_op_threads": 1},
    }
    report = psfleet.train(job, out=out, program_folder=TESTS)
    assert (report.status, report.final_step) == ("done", steps), report.error
    return report


def by_keras(steps: int) -> dict[str, np.ndarray]:
    """All weights after steps of plain Keras."""
    program, data = own_optimizer_program.build(), exact_keras_program.data()
    model = program.model()
    before = [value.copy() for value in model.get_weights()]
    model.compile(optimizer=program.optimizer, loss=program.loss)
    for step in range(steps):
        model.train_on_batch(*batch(data, 0, 1, BATCH_SIZE, step))
    moved = max(np.abs(old - new).max() for old, new in zip(before, model.get_weights(), strict=True))
    assert moved > 1000 * MAX_DIFFERENCE, f"hardly trained: the weights moved by {moved:.1e}"
    return {variable.path: variable.numpy() for variable in model.variables}
