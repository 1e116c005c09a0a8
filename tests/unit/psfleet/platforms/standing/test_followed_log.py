"""The log of a process of a standing fleet of this machine, while it is followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.standing_folder import TWO_PS, folder_of, run_here

from psfleet.files import replace_file
from psfleet.platforms.standing.fleet_folder import FleetFolder
from psfleet.platforms.standing.local import LocalFleets


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetFolder:
    """The folder of a fleet whose processes are this one."""
    folder = folder_of(TWO_PS, tmp_path, monkeypatch)
    run_here(folder)
    return folder


def test_a_log_is_followed_to_the_end_of_its_process_without_health_checks(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def problem(port: int, _: Path | None) -> str:
        asked.append(port)
        return ""

    monkeypatch.setattr("psfleet.platforms.standing.local.problem", problem)
    lab.log("ps", 0).write_text("begins\n")
    with lab.supervising():
        ps, _ = LocalFleets().members("lab")
        asked.clear()
        lines = LocalFleets().log(ps, follow=True)
        assert next(lines) == "begins"
        with lab.log("ps", 0).open("a") as log:
            log.write("trains\n")
        assert next(lines) == "trains"
        state = run_here(lab)
        state.tasks[0].state, state.tasks[0].pid = "restarting", 0
        replace_file(lab.state_file, state.model_dump_json())
        assert list(lines) == []
    assert asked == []


def test_a_log_ends_with_the_supervisors_of_its_fleet(lab: FleetFolder) -> None:
    lab.log("ps", 1).write_text("begins\n")
    _, ps = LocalFleets().members("lab")
    assert list(LocalFleets().log(ps, follow=True)) == ["begins"]
