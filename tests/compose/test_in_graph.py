"""One client drives the devices of other containers, of its replicas or parts; a worker and the chief are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.compose_fleet import START_SECS, fleet

STEPS = 1500
"""At the pace below far more than all that is done to the run takes."""
PACE_SECS = 0.2

pytestmark = pytest.mark.timeout(600)


REPLICAS: dict[str, Any] = {"fleet": {"ps": 2, "workers": 3}, "update": {"replication": "in_graph"}}
PARTS: dict[str, Any] = {"fleet": {"ps": 1, "workers": 2, "parts": 2}}
EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("made", "num_replicas"),
    [(REPLICAS, 3), pytest.param(PARTS, 1, marks=EXTENDED)],
    ids=["replicas", "parts"],
)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_killed_workers_are_waited_for_and_cost_no_step(
    tmp_path: Path, tls: bool, made: dict[str, Any], num_replicas: int
) -> None:
    sections = {
        **made,
        "train": {"steps": STEPS},
        "checkpoint": {"every_steps": 50, "keep": 2},
        "tls": tls,
    }
    with fleet(tmp_path / "job", PACE_SECS, **sections) as seen:
        seen.up()
        seen.wait_for_step(5)
        for number, service in enumerate(("worker", "chief"), start=1):
            seen.kill_inside(service)
            seen.wait_for(lambda count=number: len(seen.entries("restarted")) >= count, START_SECS, f"a new {service}")
            seen.wait_for_step(seen.step() + 5)
        seen.hurry()
        assert seen.end(START_SECS) == 0, seen.screen.read_text()
        report = seen.report()
        assert (report.status, report.final_step, report.generation) == ("done", STEPS, 1)
        lost = {event.role: event.steps_lost for event in report.events if event.kind == "restarted"}
        assert lost == {"worker": 0, "chief": 0}
        used = {index: gradients.used for index, gradients in report.gradients.per_worker.items()}
        expected = {str(index): STEPS if index < num_replicas else 0 for index in range(made["fleet"]["workers"])}
        assert used == expected, "a repeated gradient is used once"
        assert set(seen.left()) == {"volumes"}
