"""Containers that are a worker and a ps: their processes are killed, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compose_fleet import START_SECS, fleet

STEPS = 1500
"""At the pace below far more than all that is done to the run takes."""
PACE_SECS = 0.2

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("tls", [True, pytest.param(False, marks=pytest.mark.extended)], ids=["tls", "plain"])
def test_a_killed_worker_comes_back_with_its_shard_of_the_newest_checkpoint(tmp_path: Path, tls: bool) -> None:
    sections = {
        "fleet": {"workers": 2, "colocate": True},
        "train": {"steps": STEPS},
        "checkpoint": {"every_steps": 20, "keep": 2},
        "tls": tls,
    }
    with fleet(tmp_path / "job", PACE_SECS, **sections) as seen:
        seen.up()
        seen.wait_for_step(25)
        for number, service in enumerate(("worker-1", "chief"), start=1):
            seen.kill_inside(service)
            seen.wait_for(lambda count=number: len(seen.entries("restarted")) >= count, START_SECS, f"a new {service}")
            seen.wait_for_step(seen.step() + 25)
        seen.hurry()
        assert seen.end(START_SECS) == 0, seen.screen.read_text()
        report = seen.report()
        assert (report.status, report.final_step) == ("done", STEPS)
        assert report.generation >= 3, "the shard of each killed process is restored"
        since = report.gradients.since_step
        assert since is not None
        assert [ps.used for ps in report.gradients.per_ps] == [2 * (STEPS - since)] * 2
        assert set(seen.left()) == {"volumes"}
