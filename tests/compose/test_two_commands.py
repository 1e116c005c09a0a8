"""Two `psfleet up` of one job at the same time: one starts the fleet, both follow it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compose_fleet import END_SECS, START_SECS, fleet

from psfleet.report.schema import Report

pytestmark = pytest.mark.timeout(600)


def test_two_commands_at_once_start_one_fleet_and_both_end_with_its_results(tmp_path: Path) -> None:
    with fleet(tmp_path / "job", 0.25, train={"steps": 60}) as seen:
        folders = [seen.folder / name for name in ("one", "two")]
        commands = [seen.up("--out", str(folder)) for folder in folders]
        seen.wait_for_step(1, START_SECS)
        created = {each["Created"] for each in seen.containers().values()}
        seen.hurry()
        for command in commands:
            seen.wait_for(command.poll, END_SECS, "psfleet up to end", done=lambda code: code is not None)
        assert [command.returncode for command in commands] == [0, 0], seen.tails()
        reports = [Report.read(folder) for folder in folders]
        assert reports[0].run == reports[1].run
        assert [(report.status, report.events) for report in reports] == [("done", [])] * 2
        assert len(created) == 3
