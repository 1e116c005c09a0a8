"""What `psfleet up` refuses before it starts a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.scripted_platform import ScriptedPlatform

from psfleet.cli import fleets
from psfleet.job.job import load_job
from psfleet.run_folder import claimed


def test_a_folder_with_a_copy_of_results_that_were_deleted_is_refused(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(Path("runs/tiny"), load_job(Path("job.yaml")), fresh=False, platform="compose") as folder:
        (folder.path / "checkpoints" / "00000010-g1").mkdir(parents=True)
    platform = ScriptedPlatform([])
    platform.keeps_results = False
    monkeypatch.setattr(fleets, "platform", lambda *where: platform)
    said = psfleet("up", "job.yaml")
    assert (said.code, platform.applied) == (64, [])
    assert "--out runs/tiny: has a copy of a run whose results on compose were deleted" in said.err
