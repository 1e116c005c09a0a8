"""`checkpoint.shared: true` on docker compose: every ps writes its part into the volume, and restores it itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compose_fleet import START_SECS, fleet

from psfleet.checkpoint.store import newest

STEPS = 400
PACE_SECS = 0.1

pytestmark = pytest.mark.timeout(600)


def test_ps_of_a_shared_volume_write_their_parts_and_restore_them(tmp_path: Path) -> None:
    checkpoint = {"every_steps": 5, "keep": 2, "shared": True}
    sections = {"train": {"steps": STEPS}, "fleet": {"ps": 2, "workers": 2}, "checkpoint": checkpoint}
    with fleet(tmp_path / "job", PACE_SECS, **sections) as seen:
        seen.up()
        seen.wait_for_step(10)
        for service in ("ps-0", "ps-1", "chief", "worker"):
            mounts = seen.containers()[seen.container(service)]["Mounts"]
            assert any(mount["Name"].endswith("_results") for mount in mounts if mount["Type"] == "volume"), service
        seen.kill_inside("ps-1")
        seen.wait_for(lambda: seen.entries("restarted"), START_SECS, "the loss of ps 1 to be seen")
        seen.hurry()
        assert seen.end(START_SECS) == 0, seen.screen.read_text()
        report = seen.report()
        assert [(event.role, event.index) for event in report.events] == [("ps", 1)]
        found = newest(seen.out / "checkpoints")
        assert found is not None
        assert found.step == STEPS
