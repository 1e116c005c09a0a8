"""The processes of this machine as members of a fleet, with processes that end as a test says."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.report_samples import DONE
from support.scripted_platform import job

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.job import job_from_json
from psfleet.launch import watcher
from psfleet.launch.platform import chief_of
from psfleet.platforms.local import launcher
from psfleet.platforms.local import platform as local
from psfleet.platforms.local.platform import Local
from psfleet.run_folder import RunFolder, claimed
from psfleet.service import settings


@dataclass
class FakeTask:
    """Stands for a process; `code` is set by the test."""

    others: ClassVar[list[FakeTask]] = []
    role: str
    index: int
    environment: Mapping[str, str]
    log: Path
    restarts: int = 0
    code: int | None = None
    signals: list[int] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    killed_before: int = 0
    begun: bool = True
    trained: bool = True

    def __post_init__(self) -> None:
        self.others.append(self)

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"

    def start(self, cause: str = "") -> None:
        self.restarts += bool(cause)
        self.causes.append(cause)
        self.code = None

    def exit_code(self) -> int | None:
        return self.code

    def was_killed(self) -> bool:
        return self.code == 137

    def has_begun(self) -> bool:
        return self.begun

    def has_trained(self) -> bool:
        return self.trained

    def signal(self, number: int) -> None:
        if self.code is None:
            self.signals.append(number)

    def kill(self) -> None:
        self.killed_before = sum(signal.SIGKILL in task.signals for task in self.others)
        self.code = 137 if self.code is None else self.code

    def cause_of_end(self) -> str:
        return f"exit code {self.code}"


class Fleet:
    """One ps and three workers."""

    def __init__(self, folder: Path) -> None:
        self.signals: list[int] = []
        (folder / "logs").mkdir()
        self.platform = Local(job(), RunFolder(folder), folder, self.signals)
        self.platform.start()

    def task(self, name: str) -> FakeTask:
        return next(task for task in self.platform._tasks if task.name == name)  # type: ignore[return-value]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(local, "Task", FakeTask)
    monkeypatch.setattr(FakeTask, "others", [])
    return Fleet(tmp_path)


def test_processes_are_members_with_worker_0_as_the_chief(fleet: Fleet) -> None:
    found = fleet.platform.members(None)
    assert [(one.role, one.index, one.name, one.state) for one in found] == [
        ("ps", 0, "ps 0", "running"), ("chief", 0, "worker 0", "running"),
        ("worker", 1, "worker 1", "running"), ("worker", 2, "worker 2", "running"),
    ]  # fmt: skip
    assert fleet.task("ps 0").environment["PSFLEET_PS"].count(":") == 1
    assert fleet.task("worker 0").environment["PSFLEET_START"] == fleet.platform.run, "the name of the attempt"


def test_threads_that_the_machine_decides_are_not_in_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed with more workers, or on another machine, has not changed."""
    monkeypatch.setattr(local, "Task", FakeTask)
    monkeypatch.setattr(local, "num_cores", lambda: 7.5)
    with claimed(tmp_path / "out", job(), fresh=False) as folder:
        platform = Local(job(), folder, tmp_path, [])
        assert {task.environment["PSFLEET_THREADS"] for task in platform._tasks} == {"2"}
        assert job_from_json(folder.job.read_text()).device.intra_op_threads is None


@pytest.mark.parametrize(
    ("name", "code", "awaits_restart"),
    [
        ("worker 1", 137, True),
        ("worker 1", 75, True),
        ("ps 0", 143, True),
        ("worker 1", 70, False),
        ("worker 1", 1, False),
        ("worker 1", 0, False),
        ("worker 0", 75, True),
        ("worker 0", 143, False),
    ],
)
def test_restarts_are_left_to_the_watcher_unless_the_end_is_final(
    fleet: Fleet, name: str, code: int, awaits_restart: bool
) -> None:
    fleet.task(name).code = code
    found = next(one for one in fleet.platform.members(None) if one.name == name)
    assert (found.is_over, found.exit_code, found.awaits_restart) == (True, code, awaits_restart)


def test_a_restart_is_given_the_cause_of_the_end(fleet: Fleet) -> None:
    fleet.task("worker 1").code = 75
    fleet.platform.restart(fleet.platform.members(None)[2])
    assert fleet.task("worker 1").causes == ["", "exit code 75"]
    assert fleet.platform.members(None)[2].restarts == 1


def test_a_chief_that_left_a_report_is_not_restarted(fleet: Fleet, tmp_path: Path) -> None:
    fleet.task("worker 0").code = 137
    for run, awaits_restart in (("an-earlier-run", True), (fleet.platform.run, False)):
        DONE.model_copy(update={"run": run}).write(tmp_path)
        chief = chief_of(fleet.platform.members(None))
        assert chief is not None
        assert chief.awaits_restart == awaits_restart


def test_the_first_signal_asks_the_chief_to_stop_and_the_second_ends_all(fleet: Fleet) -> None:
    fleet.signals.append(signal.SIGINT)
    for _ in range(2):
        fleet.platform.members(None)
    assert (fleet.task("worker 0").signals, fleet.task("ps 0").signals) == ([signal.SIGINT], [])
    fleet.signals.append(signal.SIGINT)
    assert {one.exit_code for one in fleet.platform.members(None)} == {137}


@pytest.mark.parametrize(("begun", "secs"), [(False, 0.0), (True, local.START_STOP_SECS)])
def test_a_run_that_is_stopped_before_its_first_step_does_not_wait_for_its_processes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, begun: bool, secs: float
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 100.0, time=lambda: 0.0)
    monkeypatch.setattr(local, "time", clock)
    chief = fleet.task("worker 0")
    chief.begun, chief.trained = begun, False
    fleet.signals.append(signal.SIGINT)
    fleet.platform.members(None)
    assert chief.signals == [signal.SIGINT]
    clock.monotonic = lambda: 100.0 + secs + 0.01
    assert {one.exit_code for one in fleet.platform.members(None)} == {137}


@pytest.mark.parametrize("end", ["deadline", "remove"])
def test_every_process_is_sent_sigkill_before_any_is_waited_for(fleet: Fleet, end: str) -> None:
    """A fork server that dies meanwhile starts the processes that it has not forked, unless they were killed before."""
    if end == "remove":
        fleet.platform.remove("small", results=False)
    else:
        fleet.signals += [signal.SIGINT, signal.SIGINT]
        fleet.platform.members(None)
        fleet.platform.members(None)
    assert [task.killed_before for task in FakeTask.others] == [4, 4, 4, 4]


def test_only_what_a_stopping_chief_needs_is_restarted(fleet: Fleet) -> None:
    fleet.signals.append(signal.SIGTERM)
    fleet.platform.members(None)
    fleet.task("ps 0").code = 137
    fleet.task("worker 1").code = 75
    assert [one.awaits_restart for one in fleet.platform.members(None)] == [True, False, False, False]


def test_a_run_that_a_client_starts_has_processes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the client's variable a worker would lend its devices to clients, and never train."""
    access = FleetAccess(name="lab", id="lab-1", version="1", ps=["127.0.0.1:1"])
    monkeypatch.setenv(settings.FLEET, access.model_dump_json())
    for task in Local(job(), RunFolder(tmp_path), tmp_path, [])._tasks:
        assert settings.read({**os.environ, **task.environment, settings.JOB: ""}).fleet is None, task.name


def test_a_chief_that_failed_ends_the_others_by_a_signal_and_a_done_one_leaves_them_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.task("worker 0").code = 70
    fleet.platform.members(None)
    assert fleet.task("worker 1").signals == [signal.SIGTERM]
    monkeypatch.setattr(fleet.platform, "_deadline", 0.0)
    assert fleet.platform.members(None)[2].exit_code == 137, "after its deadline"


def test_a_chief_that_does_not_stop_in_time_is_killed(fleet: Fleet) -> None:
    chief = chief_of(fleet.platform.members(None))
    assert chief is not None
    fleet.task("worker 0").log.touch()
    fleet.platform.stop(chief, 0.05)
    assert (fleet.task("worker 0").signals, fleet.task("worker 0").code) == ([signal.SIGTERM], 137)
    assert fleet.task("worker 1").signals == [signal.SIGTERM], "nobody else ends the others"
    assert list(fleet.platform.log(chief, follow=True)) == [], "its log has an end"


def test_a_second_signal_ends_the_wait_for_the_chief(fleet: Fleet) -> None:
    chief = chief_of(fleet.platform.members(None))
    assert chief is not None
    fleet.signals += [signal.SIGINT, signal.SIGINT]
    fleet.platform.stop(chief, 3600)
    assert fleet.task("worker 0").code == 137


def test_a_lost_worker_is_the_cause_of_a_run_whose_chief_cannot_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a quorum the chief waits for a step that cannot be made; the others are killed after it."""

    class Dying(FakeTask):
        def start(self, cause: str = "") -> None:
            super().start(cause)
            self.log.touch()
            self.code = 1 if self.name == "worker 1" else None

    monkeypatch.setattr(local, "Task", Dying)
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.1)
    said: list[Any] = []
    folder = RunFolder(tmp_path)
    (tmp_path / "logs").mkdir()
    report = launcher._run(job(fleet={"ps": 1, "workers": 3}), folder, tmp_path, said.append)
    assert (report.status, report.exit_code, report.error) == ("failed", 1, "worker 1: exit code 1")
    assert any("worker 1 is gone for good" in entry["message"] for entry in said)


def test_a_log_is_followed_line_by_line_until_the_fleet_is_removed(fleet: Fleet) -> None:
    log = fleet.task("worker 0").log
    log.write_text('{"step": 1}\n{"st')
    lines = fleet.platform.log(fleet.platform.members(None)[1], follow=True)
    assert next(lines) == '{"step": 1}'
    with log.open("a") as file:
        file.write('ep": 2}\n\r 50 %\r100 %\nno end')
    assert next(lines) == '{"step": 2}'
    assert next(lines) == "\r 50 %\r100 %", "a progress bar is one line"
    fleet.platform.remove("small", results=False)
    assert list(lines) == ["no end"]
