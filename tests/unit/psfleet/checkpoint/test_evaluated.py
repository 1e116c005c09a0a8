"""The metrics in the folders of checkpoints, and the best of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save

from psfleet.checkpoint import evaluated
from psfleet.checkpoint.manifest import checkpoint_folder
from psfleet.checkpoint.store import committed_checkpoints, newest, prune
from psfleet.job.monitored import Best


def store(root: Path, **values: float) -> None:
    """Evaluated checkpoints, by the names of their folders."""
    for name, value in values.items():
        step, generation = name.removeprefix("s").split("_g")
        checkpoint = save(root, int(step), generation=int(generation))
        evaluated.write(checkpoint, {"accuracy": value, "loss": -value})


def best_step(root: Path, metric: str = "accuracy", direction: Any = "maximize") -> tuple[int, int] | None:
    found = evaluated.best(evaluated.evaluated(committed_checkpoints(root)), Best(metric=metric, direction=direction))
    return None if found is None else found.age


@pytest.mark.parametrize(
    ("values", "best"),
    [
        pytest.param({"s10_g1": 0.5, "s20_g1": 0.75, "s30_g1": 0.625}, (20, 1), id="the highest"),
        pytest.param({"s10_g1": 0.5, "s20_g1": 0.5}, (10, 1), id="of equal ones the earliest"),
        pytest.param({"s10_g1": math.nan, "s20_g1": 0.25, "s30_g1": math.inf}, (20, 1), id="a finite one"),
        pytest.param({"s10_g1": math.nan}, None, id="none is finite"),
        pytest.param({"s20_g1": 0.75, "s10_g2": 0.5}, (20, 1), id="of a generation that was rolled back"),
        pytest.param({"s20_g1": 0.5, "s20_g2": 0.5}, (20, 1), id="trained again"),
    ],
)
def test_the_best_checkpoint_is(tmp_path: Path, values: dict[str, float], best: tuple[int, int] | None) -> None:
    store(tmp_path, **values)
    assert best_step(tmp_path) == best


def test_direction_and_metric_are_those_of_the_job(tmp_path: Path) -> None:
    store(tmp_path, s10_g1=0.5, s20_g1=0.75)
    assert best_step(tmp_path, direction="minimize") == (10, 1)
    assert best_step(tmp_path, "loss") == (10, 1)
    assert best_step(tmp_path, "recall") is None


def test_a_checkpoint_whose_metrics_or_manifest_are_unreadable_is_left_out(tmp_path: Path) -> None:
    store(tmp_path, s10_g1=0.5, s20_g1=0.75, s30_g1=0.875)
    save(tmp_path, 40)
    (checkpoint_folder(tmp_path, 20, 1) / evaluated.FILE_NAME).write_text('{"metrics": ')
    (checkpoint_folder(tmp_path, 30, 1) / "manifest.json").unlink()
    assert best_step(tmp_path) == (10, 1)


def test_those_after_the_last_evaluation_that_can_be_read_are_yet_to_be_evaluated(tmp_path: Path) -> None:
    """A file can be empty after a power failure; a rollback begins at an earlier step again."""
    store(tmp_path, s10_g1=0.5, s30_g1=0.5, s20_g2=0.5)
    for step, generation in ((20, 1), (30, 2)):
        save(tmp_path, step, generation=generation)
    (save(tmp_path, 40, generation=2).folder / evaluated.FILE_NAME).write_bytes(b"")
    checkpoints = list(committed_checkpoints(tmp_path))
    found = evaluated.not_reached(checkpoints, evaluated.evaluated(checkpoints))
    assert [(each.step, each.generation) for each in found] == [(30, 2), (40, 2)]


def test_a_protected_checkpoint_is_kept_beyond_the_newest(tmp_path: Path) -> None:
    store(tmp_path, s10_g1=0.75, s20_g1=0.5, s30_g1=0.25, s40_g1=0.25)
    removed = prune(tmp_path, 2, {checkpoint_folder(tmp_path, 10, 1)})
    assert [folder.name for folder in removed] == ["00000020-g1"]
    assert best_step(tmp_path) == (10, 1)
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 40
