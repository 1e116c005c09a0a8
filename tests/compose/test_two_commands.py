"""Two `psfleet up` of one job at the same time: one starts the fleet, both follow it, the last one removes it."""

from __future__ import annotations

import signal
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
        seen.hurry()
        for command in commands:
            seen.wait_for(command.poll, END_SECS, "psfleet up to end", done=lambda code: code is not None)
        assert [command.returncode for command in commands] == [0, 0], seen.tails()
        reports = [Report.read(folder) for folder in folders]
        assert [(report.status, report.events) for report in reports] == [("done", [])] * 2
        assert [len(report.attempts) for report in reports] == [1, 1]
        assert reports[0].attempts[0].started == reports[1].attempts[0].started


def test_a_fleet_stays_until_the_last_command_that_follows_it_has_its_results(tmp_path: Path) -> None:
    """Both copy them to one folder."""
    with fleet(tmp_path / "job", 0.25, train={"steps": 30}) as seen:
        frozen = seen.up()
        seen.wait_for_step(1, START_SECS)
        frozen.send_signal(signal.SIGSTOP)
        seen.up()
        seen.hurry()
        assert seen.end() == 0, seen.tails()
        assert f"another command follows fleet {seen.name}" in seen.screen.read_text()
        assert seen.container("chief") in seen.containers()
        first = seen.report()
        frozen.send_signal(signal.SIGCONT)
        code = seen.wait_for(frozen.poll, END_SECS, "psfleet up to end", done=lambda code: code is not None)
        assert (code, seen.report(), set(seen.left())) == (0, first, {"volumes"}), seen.tails()
        assert (first.status, len(first.attempts)) == ("done", 1)
