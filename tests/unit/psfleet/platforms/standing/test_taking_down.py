"""Taking a standing fleet down ends its processes: those that ignore a signal, and those of dead supervisors, too."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.standing_folder import folder_of

from psfleet.files import replace_file
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import FleetFolder
from psfleet.platforms.standing.supervisor import Supervisor, new_state
from psfleet.processes.identity import identity

FILE = FleetFile.model_validate({"name": "lab", "fleet": {"ps": 1, "workers": 1}, "deadlines": {"stop_secs": 0.2}})
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('', flush=True)\nsignal.pause()\n"
SECS = 20.0


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """One for each task of the fleet; they ignore SIGTERM."""
    with ExitStack() as stack:
        command = [sys.executable, "-c", STUBBORN]
        started = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for _ in range(2)]
        for each in started:
            stack.callback(each.kill)
            assert each.stdout is not None
            each.stdout.readline()
        yield started


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]) -> FleetFolder:
    """The folder of a fleet whose supervisors were killed; its processes run."""
    folder, state = folder_of(FILE, tmp_path, monkeypatch), new_state(FILE)
    for task, process in zip(state.tasks, processes, strict=True):
        task.state, task.pid, task.identity = "running", process.pid, identity(process.pid)
    replace_file(folder.state_file, state.model_dump_json())
    return folder


def test_a_supervisor_kills_what_does_not_end_in_time(
    lab: FleetFolder, processes: list[subprocess.Popen[bytes]]
) -> None:
    Supervisor(lab, FILE).end()
    assert [process.wait(SECS) for process in processes] == [-signal.SIGKILL] * 2


def test_processes_without_a_supervisor_are_killed_before_their_folder_is_deleted(
    lab: FleetFolder, processes: list[subprocess.Popen[bytes]]
) -> None:
    commands.down("lab")
    assert [process.wait(SECS) for process in processes] == [-signal.SIGKILL] * 2
    assert not lab.path.exists()
