"""One client, worker 0, drives the replicas on all workers: counts, faults, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.local_fleet import START_SECS, Fleet, training

IN_GRAPH = {"replication": "in_graph"}


def used(fleet: Fleet) -> dict[str, int]:
    """By worker, its gradients that were used."""
    return {index: gradients.used for index, gradients in fleet.report().gradients.per_worker.items()}


@pytest.mark.extended
def test_in_async_mode_each_replica_makes_updates_of_its_own_and_waits_for_no_other(tmp_path: Path) -> None:
    with training(tmp_path, update={"mode": "async", **IN_GRAPH}, train={"steps": 200}, fleet={"ps": 2}) as fleet:
        fleet.wait_for_step(20)
        fleet.gates.hold(1)
        fleet.wait_for_step(fleet.step() + 30)
        fleet.gates.release(1)
        fleet.gates.hurry()
        gradients = fleet.done().gradients
    assert gradients.pushed == gradients.used + gradients.dropped
    assert gradients.used == fleet.steps
    by_worker = used(fleet)
    assert sum(by_worker.values()) == fleet.steps
    assert min(by_worker.values()) > 10
    assert not fleet.entries("lost_peer")


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_worker_is_waited_for_and_a_killed_chief_trains_on_with_the_same_workers(
    mode: str, tmp_path: Path
) -> None:
    update: dict[str, Any] = {"mode": mode, **IN_GRAPH}
    with training(tmp_path, update=update, train={"steps": 120}, checkpoint={"every_steps": 20}) as fleet:
        fleet.wait_for_step(10)
        for index, role in ((1, "worker"), (0, "chief")):
            fleet.kill("worker", index)
            fleet.wait_for(lambda name=role: restarted(fleet, name), START_SECS, f"the {role} to join again")
            fleet.wait_for_step(fleet.step() + 10)
        fleet.gates.hurry()
        report = fleet.done()
        assert report.generation == 1
        assert [(event.role, event.index, event.steps_lost) for event in report.events] == [
            ("worker", 1, 0),
            ("chief", 0, 0),
        ]
    if mode == "sync":
        assert used(fleet) == {"0": fleet.steps, "1": fleet.steps}


def restarted(fleet: Fleet, role: str) -> bool:
    """Whether a worker of that role was restarted."""
    return any(entry["message"].startswith(f"{role} ") for entry in fleet.entries("restarted"))
