"""What a fleet does when its checkpoints vanish or cannot be written while it trains."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.local_fleet import START_SECS, training

from psfleet import errors


def test_a_run_whose_checkpoints_were_deleted_ends_when_a_ps_dies(tmp_path: Path) -> None:
    with training(tmp_path, train={"steps": 2000}, checkpoint={"every_secs": 600}) as fleet:
        fleet.wait_for_step(20)
        shutil.rmtree(fleet.out / "checkpoints")
        fleet.kill("ps", 0)
        assert fleet.end(START_SECS) == errors.NO_CHECKPOINT, fleet.tails()
        report = fleet.report()
        assert (report.status, report.exit_code) == ("failed", errors.NO_CHECKPOINT)
        assert f"steps were trained, but {fleet.out / 'checkpoints'} has no checkpoint" in (report.error or "")
        assert not (fleet.out / "checkpoints").exists()
