"""The supervisor of a standing fleet: what it records, adopts, and a disk that is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.standing_folder import TWO_PS, folder_of

from psfleet.files import replace_file
from psfleet.platforms.standing import supervisor as module
from psfleet.platforms.standing.fleet_folder import FleetFolder
from psfleet.platforms.standing.supervisor import Supervisor
from psfleet.polling import wait_until
from psfleet.processes import fork_client
from psfleet.processes.command import Command

FILE = TWO_PS


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetFolder:
    """The folder of a fleet whose processes are this one."""
    monkeypatch.setattr(module, "start_supervisor", lambda folder: SimpleNamespace(poll=lambda: None))
    return folder_of(FILE, tmp_path, monkeypatch)


def recorded(folder: FleetFolder) -> list[int]:
    """The process ids in the state."""
    state = folder.state()
    return [] if state is None else [task.pid for task in state.tasks]


def test_a_process_is_recorded_before_the_next_one_is_started(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that is killed in between leaves no process that its successor does not know."""
    seen: list[list[int]] = []

    def start(command: Command, modules: tuple[str, ...]) -> SimpleNamespace:
        seen.append(recorded(lab))
        return SimpleNamespace(pid=os.getpid(), poll=lambda: None)

    monkeypatch.setattr(fork_client, "start", start)
    Supervisor(lab, FILE).look()
    assert seen[1:] == [[os.getpid(), 0]]
    assert recorded(lab) == [os.getpid()] * 2


def test_a_full_disk_does_not_end_the_supervisor(lab: FleetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: Command, modules: tuple[str, ...]) -> SimpleNamespace:
        return SimpleNamespace(pid=os.getpid(), poll=lambda: None)

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fork_client, "start", start)
    supervisor = Supervisor(lab, FILE)
    monkeypatch.setattr(module, "replace_file", full)
    supervisor.look()
    assert recorded(lab) == []
    monkeypatch.setattr(module, "replace_file", replace_file)
    supervisor.look()
    assert recorded(lab) == [os.getpid()] * 2


def test_a_process_that_a_killed_supervisor_had_not_recorded_is_adopted(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the ports: another one could not start."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Command, modules: tuple[str, ...]) -> subprocess.Popen[bytes]:
        waiting = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
        started.append(subprocess.Popen(waiting, env=command.environment))
        # The kernel shows it a moment after the process has begun.
        environment = Path(f"/proc/{started[-1].pid}/environ")
        wait_until(environment.read_bytes, 10.0, "the environment of the process")
        return started[-1]

    monkeypatch.setattr(fork_client, "start", start)
    killed = Supervisor(lab, FILE)
    killed._record()
    try:
        killed.tasks[1].check(0.0)
        assert recorded(lab) == [0, 0]
        successor = Supervisor(lab, FILE)
        assert [task.state.pid for task in successor.tasks] == [0, started[0].pid]
        successor.look()
        assert recorded(lab) == [started[1].pid, started[0].pid]
    finally:
        for process in started:
            process.kill()
            process.wait()
