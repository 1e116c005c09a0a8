"""`input.sharding: dynamic` in a fleet: each example is trained on once in each epoch, and a loss is reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_fleet import START_SECS, Fleet, training
from support.rows import first_rows

from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.measurements import DataReading

pytestmark = pytest.mark.usefixtures("launches_forked")

BATCH, EXAMPLES = 4, 480
"""So many that a process which is killed soon after the start is in the middle of its first epoch."""


@contextmanager
def counting(folder: Path, workers: int, loaders: int, steps: int, **sections: Any) -> Iterator[Fleet]:
    """A fleet whose weights are minus the numbers of times that it was trained on each example."""
    content = {
        "fleet": {"ps": 1, "workers": workers},
        "optimizer": {"name": "sgd", "learning_rate": BATCH * workers},
        "train": {"steps": steps, "batch_size": BATCH, "shuffle": 16},
        "input": {"from": "loaders", "loaders": loaders, "sharding": "dynamic"},
        "options": {"examples": EXAMPLES},
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
    steps = 5 * EXAMPLES // (BATCH * workers) + 7
    with counting(tmp_path, workers, loaders, steps) as fleet:
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert data.ended_epochs >= 3
    assert (data.lost, [epoch.delivered for epoch in data.epochs[:3]]) == (0, 3 * [EXAMPLES])
    assert data.ended_epochs <= found.min()
    assert found.max() <= len(data.epochs)
    assert (data.delivered, found.sum()) == (steps * BATCH * workers, steps * BATCH * workers)
    assert f"lost in {data.ended_epochs} epochs (sharding: dynamic)" in fleet.screen.read_text()


@pytest.mark.parametrize("loaders", first_rows([2, 1], 1))
def test_a_killed_loader_costs_no_step_and_what_it_loses_is_counted(tmp_path: Path, loaders: int) -> None:
    steps = 400
    with counting(tmp_path, 2, loaders, steps) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("loader", 0)
        fleet.wait_for(lambda: len(fleet.entries("loader")) > loaders, START_SECS, "the chief to read from it again")
        fleet.gates.hurry()
        report = fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert [(event.role, event.index, event.kind) for event in report.events] == [("loader", 0, "restarted")]
    assert (report.gradients.pushed, report.gradients.used) == (2 * steps, 2 * steps)
    broken = [epoch for epoch in data.epochs if epoch.lost]
    assert broken, data
    assert max(epoch.lost for epoch in broken) <= EXAMPLES // loaders, "only what it had"
    assert found.max() <= len(data.epochs), "at most once in each epoch"
    assert found.min() >= data.ended_epochs - len(broken)


@pytest.mark.extended
def test_a_loader_that_is_away_for_many_epochs_loses_its_part_of_each(tmp_path: Path) -> None:
    examples = 4 * BATCH
    with counting(tmp_path, 2, 2, 3000, options={"examples": examples}) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("loader", 0)
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), fleet.report().data
    assert data is not None
    assert data.num_examples == examples
    assert data.delivered == found.sum()
    away = found[1::2].min() - found[0::2].max()
    assert away > 10, "epochs without its part"
    assert abs(data.ended_epochs - found[1::2].min()) <= 2
    assert abs(data.lost - (found[1::2].sum() - found[0::2].sum())) <= 2 * examples


@pytest.mark.extended
def test_a_killed_worker_loses_what_it_has_read_ahead_and_continues_the_epoch(tmp_path: Path) -> None:
    steps = 400
    with counting(tmp_path, 2, 2, steps) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("worker", 1)
        fleet.wait_for(lambda: fleet.has_restarted("worker"), START_SECS, "the worker to join again")
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert data.lost < EXAMPLES // 4, "no more than it had read ahead"
    assert data.ended_epochs >= 3
    assert found.max() <= len(data.epochs), "at most once in each epoch"


@pytest.mark.extended
@pytest.mark.parametrize(
    "update", [{"mode": "async"}, {"mode": "ssp", "bound": 2}, {"mode": "averaging", "local_steps": 3}]
)
def test_every_mode_reads_each_example_once_in_each_epoch(tmp_path: Path, update: dict[str, Any]) -> None:
    with counting(tmp_path, 2, 2, 600, update=update) as fleet:
        fleet.gates.hurry()
        fleet.done()
        data = reading(fleet)
    assert data.ended_epochs >= 3
    assert (data.lost, [epoch.delivered for epoch in data.epochs[:3]]) == (0, 3 * [EXAMPLES])


@pytest.mark.extended
def test_a_restarted_ps_costs_no_example_of_an_epoch(tmp_path: Path) -> None:
    """Steps that the fleet repeats are of other examples, and epochs go on."""
    with counting(tmp_path, 2, 2, 400, checkpoint={"every_steps": 10}) as fleet:
        fleet.wait_for_step(25)
        fleet.kill("ps", 0)
        fleet.wait_for(lambda: fleet.has_restarted("ps"), START_SECS, "the chief to restore the ps")
        fleet.gates.hurry()
        report = fleet.done()
        data = reading(fleet)
    assert report.generation == 2
    assert data.lost == 0
    assert data.ended_epochs >= 3


@pytest.mark.extended
def test_a_restarted_chief_continues_the_counts(tmp_path: Path) -> None:
    with counting(tmp_path, 2, 2, 400) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("worker", 0)
        fleet.wait_for(lambda: fleet.has_restarted("chief"), START_SECS, "another chief")
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert data.epochs[0].epoch == 0
    assert data.lost < EXAMPLES // 4, "no more than it had read ahead"
    assert found.max() <= len(data.epochs)


@pytest.mark.extended
def test_a_frozen_loader_loses_its_part_of_one_epoch_and_the_others_go_on(tmp_path: Path) -> None:
    with counting(tmp_path, 2, 2, 400) as fleet:
        fleet.wait_for_step(10)
        pid = fleet.pid("loader", 1)
        assert pid is not None, fleet.tails()
        os.kill(pid, signal.SIGSTOP)
        fleet.wait_for(lambda: fleet.entries("loader_lost"), START_SECS, "the chief to lose it")
        fleet.gates.hurry()
        fleet.done()
        found, data = times_trained(fleet), reading(fleet)
    assert found.max() <= len(data.epochs), "at most once in each epoch"
    assert found[0::2].min() > found[1::2].max(), "loader 1 has the odd numbers"
