"""Folders of standing fleets of this machine: their state, and those of which no process is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psfleet.files import replace_file
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.standing.fleet_folder import FleetFolder, one_command
from psfleet.platforms.standing.state import FleetState
from psfleet.platforms.standing.supervisor import new_state
from psfleet.processes.identity import identity
from psfleet.service import settings

TWO_PS = FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2}})


def state_of(folder: FleetFolder) -> FleetState:
    """What the supervisor of a fleet has recorded last."""
    found = folder.state()
    assert found is not None
    return found


def folder_of(file: FleetFile, user: Path, patch: pytest.MonkeyPatch) -> FleetFolder:
    """The folder of a wanted fleet without a state; `user` has the fleets of this user from now on."""
    patch.setenv(settings.STATE, str(user))
    with one_command(file.name) as folder:
        folder.make(file)
    return folder


def run_here(folder: FleetFolder, state: FleetState | None = None) -> FleetState:
    """Records this process as that of each task, and returns the state: a new one if none is given."""
    file = folder.file()
    assert file is not None
    state = state or new_state(file)
    for task in state.tasks:
        task.state, task.pid, task.identity, task.started = "running", os.getpid(), identity(os.getpid()), 1.0
    replace_file(folder.state_file, state.model_dump_json())
    return state
