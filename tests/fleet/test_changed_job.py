"""A job that changes while the ps train: a chief that comes back with it restores, and other workers are refused."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import service
from support.tiny_job import END_SECS, JOB, PRELUDE, entries

from psfleet.checkpoint import store
from psfleet.job.job import load_job
from psfleet.launch.task import Wanted, environment, task_of
from psfleet.polling import wait_until
from psfleet.processes.child import MODULES
from psfleet.processes.command import Process
from psfleet.processes.ports import free_addresses
from psfleet.report.schema import Report

ENDLESS = "train.steps=1000000"
GATE = """
import os
from pathlib import Path
from psfleet.polling import wait_until

if os.environ["PSFLEET_INDEX"] == "0":
    wait_until(Path({gate!r}).exists, {secs}, "the test")
"""
"""Holds the chief back."""


class Fleet:
    """Processes of `psfleet task` on this machine, each with a job file of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "job.yaml").write_text(f"{JOB}checkpoint: {{every_steps: 5}}\n")
        self.folder, self.out = folder, folder / "out"
        (folder / "program.py").write_text(PRELUDE)
        self.out.mkdir()
        self.ps = free_addresses(1)[0].data

    @contextmanager
    def started(self, name: str, role: str, index: int, *overrides: str) -> Iterator[Process]:
        """Starts a process; kills it at the end."""
        job = load_job(self.folder / "job.yaml", overrides)
        address = None if role == "ps" else free_addresses(1)[0].data
        task = task_of(job, Wanted(role, index, self.ps, address), None)
        variables: Mapping[str, str] = environment(job, task, self.folder, self.out, None, 0, is_text=False)
        process = service(MODULES[task.role], dict(variables), self.log(name))
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def await_checkpoint(self) -> int:
        """Waits for one above step 0; its step."""

        def newest() -> int:
            found = store.newest(self.out / "checkpoints") if (self.out / "checkpoints").is_dir() else None
            return 0 if found is None else found.step

        return wait_until(newest, END_SECS, "a checkpoint", poll_secs=0.05)

    def await_line(self, name: str, message: str) -> float:
        """Waits for a line in the log of a process; its time."""

        def found() -> float:
            lines = entries(self.log(name)) if self.log(name).exists() else []
            return next((entry["time"] for entry in lines if entry.get("message") == message), 0.0)

        return wait_until(found, END_SECS, f"{message!r} of {name}", poll_secs=0.05)

    def exit_code(self, process: Process) -> int:
        found = wait_until(process.poll, END_SECS, "an exit", done=lambda code: code is not None, poll_secs=0.05)
        assert found is not None
        return found


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_chief_that_comes_back_with_another_job_trains_by_that_from_the_newest_checkpoint(fleet: Fleet) -> None:
    with fleet.started("ps", "ps", 0, ENDLESS) as ps:
        with fleet.started("before", "worker", 0, ENDLESS):
            fleet.await_checkpoint()
        saved = fleet.await_checkpoint()
        final = saved + 20
        changed = f"train.steps={final}", "optimizer.learning_rate=0.03"
        with fleet.started("after", "worker", 0, *changed) as chief:
            assert (fleet.exit_code(chief), fleet.exit_code(ps)) == (0, 0), fleet.log("after").read_text()
    report = Report.read(fleet.out)
    assert (report.status, report.final_step, report.target_step) == ("done", final, final)
    [event] = [event for event in report.events if event.kind == "job_changed"]
    assert f"train.steps 1000000 -> {final}" in event.cause
    assert "optimizer.learning_rate" in event.cause
    newest = store.newest(fleet.out / "checkpoints")
    assert newest is not None
    assert (newest.step, newest.generation) == (final, 2)


def test_a_worker_of_the_changed_job_waits_until_the_chief_has_restored_it(fleet: Fleet) -> None:
    """The chief, which still builds its model, has joined, so that workers with its job may join, too."""
    gate = fleet.folder / "gate"
    with (fleet.folder / "program.py").open("a") as program:
        program.write(GATE.format(gate=str(gate), secs=END_SECS))
    changed = ENDLESS, "fleet.workers=4", "update.quorum=1"
    with fleet.started("ps", "ps", 0, ENDLESS):
        gate.touch()
        with fleet.started("before", "worker", 0, ENDLESS):
            fleet.await_checkpoint()
        gate.unlink()
        with fleet.started("chief", "worker", 0, *changed) as chief:
            fleet.await_line("chief", "joined as worker 0")
            with fleet.started("late", "worker", 3, *changed) as late:
                fleet.await_line("late", "waiting for 1 parameter server to restore the model")
                gate.touch()
                began = fleet.await_line("late", "opening a session with 1 parameter server")
                chief.send_signal(signal.SIGTERM)
                assert (fleet.exit_code(chief), fleet.exit_code(late)) == (143, 143)
    [event] = [event for event in Report.read(fleet.out).events if event.kind == "job_changed"]
    assert event.time < began, "the worker used the ps before"


@pytest.mark.parametrize(
    ("index", "override", "section"), [(3, "fleet.workers=4", "fleet"), (1, "train.batch_size=2", "train")]
)
def test_a_worker_with_another_job_is_refused_and_the_run_goes_on(
    fleet: Fleet, index: int, override: str, section: str
) -> None:
    with fleet.started("ps", "ps", 0, ENDLESS) as ps, fleet.started("chief", "worker", 0, ENDLESS) as chief:
        fleet.await_checkpoint()
        with fleet.started("late", "worker", index, ENDLESS, override) as late:
            assert fleet.exit_code(late) == 78
        [failed] = [entry for entry in entries(fleet.log("late")) if entry.get("event") == "failed"]
        assert f"{section} of the job file differs" in failed["message"]
        chief.send_signal(signal.SIGTERM)
        assert (fleet.exit_code(chief), fleet.exit_code(ps)) == (143, 143)
    assert Report.read(fleet.out).status == "stopped"
