"""A held run in averaging and ssp mode: what `train(steps)` means there, and what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.handled_run import handled
from support.local_fleet import START_SECS

from psfleet.checkpoint.manifest import read_manifest

LOCAL_STEPS = 5


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
@pytest.mark.parametrize(
    ("update", "asked", "held_at"),
    [
        pytest.param({"mode": "averaging", "local_steps": LOCAL_STEPS}, [7, 5, 1], [10, 15, 20], id="averaging"),
        pytest.param({"mode": "ssp", "bound": 1}, [7, 5, 1], [7, 12, 13], id="ssp"),
    ],
)
def test_a_run_is_held_after_the_steps_of_each_call_or_at_the_end_of_their_round(
    tmp_path: Path, update: dict[str, Any], asked: list[int], held_at: list[int]
) -> None:
    with handled(
        tmp_path, paused=True, fleet={"ps": 2, "workers": 2}, update=update, train={"steps": 1000, "batch_size": 1}
    ) as run:
        for steps, at in zip(asked, held_at, strict=True):
            assert run.train(steps).result(START_SECS) == at
            assert read_manifest(run.save()).step == at
            assert run.status == f"held at step {at}"
        assert "loss" in run.evaluate().result(START_SECS)
        loss, gradient = run.gradient()
        assert loss > 0
        assert list(gradient) == run.weights.trained
        run.stop()
        report = run.wait(START_SECS)
        assert (report.status, report.final_step) == ("stopped", held_at[-1])
        rounds = held_at[-1] // LOCAL_STEPS
        used = held_at[-1] if update["mode"] == "ssp" else 2 * rounds
        assert [each.used for each in report.gradients.per_ps] == [used] * 2
        assert all(each.pushed == each.used + each.dropped for each in report.gradients.per_ps)
