"""A task of a standing fleet: restarts with growing pauses, permanent failures, and adopted processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from psfleet.errors import BAD_JOB, LOST_PEERS
from psfleet.platforms.standing import task as module
from psfleet.platforms.standing.state import FAILED, RESTARTING, RUNNING, TaskState
from psfleet.platforms.standing.task import ADOPTED, FIRST_PAUSE_SECS, MAX_PAUSE_SECS, STABLE_SECS, StandingTask
from psfleet.processes.command import Command
from psfleet.processes.identity import identity


class Started:
    """A process that is this one until it has an exit code."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.pid = os.getpid()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """See `Process`."""
        return self.returncode


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """All processes that were started, which do nothing."""
    processes: list[Started] = []

    def start(command: Command, modules: tuple[str, ...]) -> Started:
        processes.append(Started(command))
        return processes[-1]

    monkeypatch.setattr(module.fork_client, "start", start)
    return processes


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "ps-0.log"


def new_task(log: Path, **state: object) -> StandingTask:
    """A ps."""
    fields = {"role": "ps", "index": 0, "address": "127.0.0.1:1"} | state
    return StandingTask(TaskState.model_validate(fields), {"PSFLEET_INDEX": "0"}, log)


def test_a_process_that_dies_is_started_again_with_growing_pauses(started: list[Started], log: Path) -> None:
    task, now, pauses = new_task(log), 0.0, []
    assert task.check(now)
    for _ in range(9):
        assert not task.check(now)
        started[-1].returncode = -9
        assert task.check(now)
        assert (task.state.state, task.state.cause) == (RESTARTING, "killed by SIGKILL")
        begin, number = now, len(started)
        while not task.check(now):
            now += FIRST_PAUSE_SECS
        assert len(started) == number + 1
        pauses.append(now - begin)
    assert pauses[:3] == [FIRST_PAUSE_SECS, 2 * FIRST_PAUSE_SECS, 4 * FIRST_PAUSE_SECS]
    assert pauses[-1] == MAX_PAUSE_SECS
    assert (task.state.state, task.state.restarts) == (RUNNING, 9)
    assert started[-1].command.environment["PSFLEET_CAUSE"] == "killed by SIGKILL"


def test_a_process_that_has_lived_long_is_started_again_after_the_first_pause(
    started: list[Started], log: Path
) -> None:
    task, now = new_task(log), 0.0
    for _ in range(4):
        assert task.check(now)
        started[-1].returncode = -9
        assert task.check(now)
        now += MAX_PAUSE_SECS
    assert task.check(now)
    task.state.started -= STABLE_SECS
    started[-1].returncode = -9
    assert task.check(now)
    assert task.check(now + FIRST_PAUSE_SECS)
    assert task.state.state == RUNNING


def test_a_process_that_would_only_fail_again_is_not_started_again(started: list[Started], log: Path) -> None:
    task = new_task(log)
    task.check(0.0)
    log.write_text(
        json.dumps(
            {"time": 1.0, "message": "no such device", "event": "failed", "exit_code": BAD_JOB, "level": "error"}
        )
    )
    started[0].returncode = BAD_JOB
    assert task.check(0.0)
    assert not task.check(1e6)
    assert (task.state.state, task.state.cause) == (FAILED, f"no such device (exit code {BAD_JOB})")
    assert len(started) == 1


def test_a_process_that_lost_its_port_is_started_again(started: list[Started], log: Path) -> None:
    task = new_task(log)
    task.check(0.0)
    started[0].returncode = LOST_PEERS
    task.check(0.0)
    assert task.check(1e6)
    assert len(started) == 2


def test_a_process_of_an_earlier_supervisor_is_adopted(started: list[Started], log: Path) -> None:
    own = os.getpid()
    task = new_task(log, state=RUNNING, pid=own, identity=identity(own))
    assert not task.check(0.0)
    assert not task.has_ended()
    assert (task.state.pid, started) == (own, [])


def test_a_process_that_ended_between_two_supervisors_is_started_again(started: list[Started], log: Path) -> None:
    task = new_task(log, state=RUNNING, pid=os.getpid(), identity="another boot:1", restarts=1)
    assert task.check(0.0)
    assert (task.state.cause, task.state.restarts, len(started)) == (ADOPTED, 2, 1)


def test_a_process_that_cannot_be_started_is_tried_again(started: list[Started], tmp_path: Path) -> None:
    """For example because the disk is full: the supervisor continues with the other processes."""
    task = new_task(tmp_path / "logs" / "ps-0.log")
    assert task.check(0.0)
    assert (task.state.state, task.state.restarts, started) == (RESTARTING, 0, [])
    assert "it cannot be started: [Errno 2] No such file or directory" in task.state.cause
    assert not task.check(0.0), "not again at once"
    (tmp_path / "logs").mkdir()
    assert task.check(MAX_PAUSE_SECS)
    assert (task.state.state, len(started)) == (RUNNING, 1)


def test_the_end_of_a_process_is_noticed_without_its_log(started: list[Started], log: Path) -> None:
    task = new_task(log)
    task.check(0.0)
    log.unlink()
    started[0].returncode = LOST_PEERS
    assert task.check(0.0)
    assert task.state.state == RESTARTING
