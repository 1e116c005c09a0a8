"""A run with in-graph replication in containers: the chief reaches the workers' TensorFlow on the fleet's network."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compose_fleet import START_SECS, fleet

STEPS = 400
PACE_SECS = 0.1

pytestmark = pytest.mark.timeout(600)


def test_one_client_trains_on_the_devices_of_all_containers_and_waits_for_one_that_was_killed(tmp_path: Path) -> None:
    sections = {"fleet": {"ps": 2, "workers": 3}, "train": {"steps": STEPS}, "update": {"replication": "in_graph"}}
    with fleet(tmp_path / "job", PACE_SECS, **sections) as seen:
        seen.up()
        seen.wait_for_step(5)
        seen.kill_inside("worker", 1)
        seen.wait_for(lambda: seen.entries("restarted"), START_SECS, "the worker to join again")
        seen.wait_for_step(seen.step() + 5)
        seen.hurry()
        assert seen.end() == 0, seen.tails()
        report = seen.report()
    assert (report.final_step, report.generation) == (STEPS, 1)
    assert {index: each.used for index, each in report.gradients.per_worker.items()} == dict.fromkeys("012", STEPS)
    assert [(event.role, event.steps_lost) for event in report.events] == [("worker", 0)]
