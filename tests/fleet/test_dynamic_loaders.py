"""`input.sharding: dynamic` in a fleet: each example is trained on once in each epoch, and a loss is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_fleet import START_SECS, Fleet, training
from support.programs.loaded_program import EXAMPLES
from support.rows import first_rows

from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.measurements import DataReading

pytestmark = pytest.mark.usefixtures("launches_forked")

BATCH = 4


@contextmanager
def counting(folder: Path, workers: int, loaders: int, steps: int, **sections: Any) -> Iterator[Fleet]:
    """A fleet whose weights are minus the numbers of times that it was trained on each example."""
    content = {
        "fleet": {"ps": 1, "workers": workers},
        "optimizer": {"name": "sgd", "learning_rate": BATCH * workers},
        "train": {"steps": steps, "batch_size": BATCH, "shuffle": 16},
        "input": {"from": "loaders", "loaders": loaders, "sharding": "dynamic"},
        **sections,
    }
    with training(folder, step_secs=0.03, programs=("counted_program", "loaded_program"), **content) as fleet:
        yield fleet


def times_trained(fleet: Fleet) -> np.ndarray:
    return np.rint(-read_tensors(fleet.checkpoint())["w"]).astype(int)


def reading(fleet: Fleet) -> DataReading:
    data = fleet.report().data
    assert data is not None
    assert data.num_examples == EXAMPLES
    for epoch in data.epochs:
        assert epoch.lost is None or epoch.delivered + epoch.lost == EXAMPLES, epoch
    return data


@pytest.mark.parametrize(("workers", "loaders"), first_rows([(3, 2), (1, 1)], 1))
def test_each_example_is_trained_on_once_in_each_epoch(tmp_path: Path, workers: int, loaders: int) -> None:
    steps = 5 * EXAMPLES // (BATCH * workers)
    with counting(tmp_path, workers, loaders, steps) as fleet:
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert data.ended_epochs >= 3
    assert (data.lost, [epoch.delivered for epoch in data.epochs[:3]]) == (0, 3 * [EXAMPLES])
    assert data.ended_epochs <= found.min()
    assert found.max() <= len(data.epochs)
    assert found.sum() == steps * BATCH * workers
    assert f"lost in {data.ended_epochs} epochs (sharding: dynamic)" in fleet.screen.read_text()


def test_a_killed_loader_costs_no_step_and_what_it_loses_is_counted(tmp_path: Path) -> None:
    steps = 120
    with counting(tmp_path, 2, 2, steps) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("loader", 0)
        fleet.wait_for(lambda: len(fleet.entries("loader")) > 2, START_SECS, "the chief to read from it again")
        fleet.gates.hurry()
        report = fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert [(event.role, event.index, event.kind) for event in report.events] == [("loader", 0, "restarted")]
    assert (report.gradients.pushed, report.gradients.used) == (2 * steps, 2 * steps)
    broken = [epoch for epoch in data.epochs if epoch.lost]
    assert broken, data
    assert data.lost <= EXAMPLES
    assert found.max() <= len(data.epochs), "at most once in each epoch"
    assert found.min() >= data.ended_epochs - len(broken)


@pytest.mark.extended
def test_a_killed_worker_loses_what_it_has_read_ahead_and_continues_the_epoch(tmp_path: Path) -> None:
    steps = 120
    with counting(tmp_path, 2, 2, steps) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("worker", 1)
        fleet.wait_for(lambda: fleet.has_restarted("worker"), START_SECS, "the worker to join again")
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert 0 < data.lost <= EXAMPLES
    assert found.max() <= len(data.epochs), "at most once in each epoch"
