"""Whether a standing fleet can be started, and has been; no process is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.errors import UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import FleetFolder, fleet_folders
from psfleet.platforms.standing.supervisor import new_state
from psfleet.service import settings

FILE = FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2, "workers": 1}})


def test_without_a_home_there_are_no_fleets_and_none_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (settings.STATE, "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    assert fleet_folders() == []
    with pytest.raises(UsageError, match=r"home directory\., expected HOME, XDG_STATE_HOME or PSFLEET_STATE"):
        commands.up(FILE)


@pytest.mark.parametrize(("other", "lock_is_held", "expected"), [(7, True, True), (7, False, False), (5, True, False)])
def test_a_fleet_whose_lock_another_supervisor_has_got_is_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: int, lock_is_held: bool, expected: bool
) -> None:
    """The state before was left by supervisor 5; this command has started supervisor 9."""
    states = {number: new_state(FILE).model_copy(update={"supervisor": number}) for number in (5, other)}
    folder = FleetFolder(tmp_path)
    monkeypatch.setattr(FleetFolder, "state", lambda _: states[other])
    monkeypatch.setattr(FleetFolder, "is_up", lambda _: lock_is_held)
    process: Any = SimpleNamespace(pid=9, poll=lambda: None)
    assert commands._is_supervised(folder, process, states[5]) is expected
