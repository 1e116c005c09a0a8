"""A run that stops early is done, and has its best checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support import commands
from support.local_fleet import START_SECS, training
from support.programs.paced_program import EXAMPLES, _data

from psfleet.report.schema import EvaluationLog

SECTIONS: dict[str, Any] = {
    "fleet": {"ps": 1, "workers": 2},
    "train": {"steps": 5000},
    # No loss is so much better than the first one: training ends with the third evaluation after it.
    "evaluate": {
        "every_steps": 10,
        "stop": {"metric": "loss", "direction": "minimize", "patience": 3, "min_delta": 1000},
    },
    # The "best" loss is the highest one, which is one of the first.
    "checkpoint": {"keep": 1, "best": {"metric": "loss", "direction": "maximize"}},
}


def loss(tensors: dict[str, np.ndarray]) -> float:
    """What the program's evaluation gives for weights."""
    x, y = _data(EXAMPLES)
    guess = np.tanh(x @ tensors["w1"] + tensors["b1"]) @ tensors["w2"] + tensors["b2"]
    return float(np.mean(np.square(guess - y)))


@pytest.mark.extended
def test_a_run_that_stops_early_is_done_and_keeps_its_best_checkpoint(tmp_path: Path) -> None:
    """In async mode, where no worker has the weights of a checkpoint; the chief is killed after its decision."""
    with training(tmp_path, update={"mode": "async"}, **SECTIONS) as fleet:
        fleet.wait_for(lambda: fleet.entries("early_stop"), START_SECS, "the decision")
        fleet.kill("worker", 0)
        assert fleet.end(START_SECS) == 0, fleet.tails()
        report = fleet.report()
    assert (report.status, report.exit_code, report.target_step, report.restarts) == ("done", 0, 5000, 1)
    assert report.stopped_early is not None
    assert report.stopped_early.startswith("loss has not improved by at least 1000 in the last 3 evaluations")
    assert [event.kind for event in report.events].count("early_stop") == 1
    assert report.checkpoint is not None
    assert report.checkpoint.step == report.final_step == fleet.checkpoint().step
    assert 40 <= report.final_step < 5000
    evaluations = EvaluationLog(fleet.out / EvaluationLog.FILE_NAME).curve()
    assert [each.step for each in evaluations][:4] == [10, 20, 30, 40]
    assert evaluations[-1].step == report.final_step
    best = max(evaluations, key=lambda each: (each.metrics["loss"], -each.step))
    assert report.best is not None
    assert (report.best.step, report.best.value) == (best.step, best.metrics["loss"])
    folders = {Path(report.best.path).name, fleet.checkpoint().folder.name}
    assert {path.name for path in (fleet.out / "checkpoints").iterdir()} == folders
    assert len(folders) == 2
    exported = tmp_path / "best.safetensors"
    done = commands.psfleet(tmp_path, "weights", str(fleet.out), "--best", "--out", str(exported), timeout_secs=60)
    assert done.returncode == 0, done.stderr
    assert loss(safetensors.numpy.load_file(exported)) == pytest.approx(report.best.value, rel=1e-5)
