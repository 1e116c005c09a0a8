"""How a run is stopped, resumes and ends, and that a folder belongs to one run at a time."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import psfleet
from support.local_fleet import END_SECS, START_SECS, Fleet, processes, training

from psfleet import errors

FIRST_STEPS = 50
"""The chief logs its progress twice a second: a run that resumes has logged a step before it has made so many."""
STANDSTILL_SECS = 2.5
"""Longer than two heartbeats: the chief sees that no step was made between them, as with slow steps."""
SIGNALLED = ("signalled_program", "paced_program")


@dataclass(frozen=True)
class Stopped:
    """A run that SIGTERM stopped, of whose two workers one was killed before.

    Attributes:
        step: At which it was stopped.
        loaders: Processes that the program of both workers started at first.
        loaders_left: Those of them, and of the worker that was started again, that ran before the run was stopped.
    """

    folder: Path
    step: int
    loaders: int
    loaders_left: int


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A run of a program that handles SIGTERM itself and has processes of its own; its last evaluation never ends."""
    folder = tmp_path_factory.mktemp("stopped")
    with training(folder, programs=SIGNALLED, train={"steps": 2000}, evaluate={"every_steps": 5}) as fleet:
        fleet.wait_for_step(10)
        fleet.gates.hold("evaluation")
        loaders = sorted(fleet.gates.folder.glob("loader-*"))
        fleet.kill("worker", 1)
        others = fleet.wait_for(lambda: set(fleet.gates.folder.glob("loader-*")) - {*loaders}, START_SECS, "a loader")
        fleet.wait_for_step(fleet.step() + 10)
        pids = [int(path.name.removeprefix("loader-")) for path in {*loaders, *others}]
        left = [pid for pid in pids if pid in processes(fleet.out)]
        step = stop(fleet, signal.SIGTERM)
        fleet.gates.release("evaluation")
        check_gradients_of_each_step(fleet, step)
    return Stopped(folder, step, len(loaders), len(left))


@pytest.mark.extended
def test_a_program_with_its_own_handlers_and_processes_is_stopped_and_killed_as_any(stopped: Stopped) -> None:
    assert stopped.loaders == 2
    assert stopped.loaders_left == 2, "that of the killed worker has ended"


def test_a_stopped_run_resumes_at_the_step_where_it_stopped(stopped: Stopped, tmp_path: Path) -> None:
    """Stopped by SIGTERM, then by Ctrl-C while a worker is away; then another number of processes resumes it."""
    folder = shutil.copytree(stopped.folder, tmp_path / "again")
    then = {"ps": 2, "workers": 1}
    with training(folder, programs=SIGNALLED, train={"steps": 2000}) as fleet:
        check_resumed(fleet, stopped.step)
        fleet.kill("worker", 1)
        second = stop(fleet, signal.SIGINT, START_SECS)
        assert second > stopped.step
    with training(folder, programs=SIGNALLED, train={"steps": second + 20}, fleet=then) as fleet:
        check_resumed(fleet, second)
        fleet.gates.hurry()
        report = fleet.done()
        assert [ps.used for ps in report.gradients.per_ps] == [then["workers"] * 20] * then["ps"]
        assert report.gradients.since_step == second
        assert (report.restarts, report.generation) == (0, 3)


@pytest.mark.extended
def test_a_run_that_resumes_is_stopped_at_once_before_its_first_step(stopped: Stopped, tmp_path: Path) -> None:
    """Nothing is to be saved, so nobody waits for the chief, whose data never come."""
    # The logs of the run before say already what the test waits for.
    folder = shutil.copytree(stopped.folder, tmp_path / "again", ignore=shutil.ignore_patterns("*.log"))
    patient = {"stop_secs": 10 * START_SECS}
    with training(folder, programs=SIGNALLED, train={"steps": 2000}, deadlines=patient, hold=0) as fleet:
        fleet.wait_for(
            lambda: any(entry["step"] == stopped.step for entry in fleet.entries("fleet")),
            START_SECS,
            "the restored step",
        )
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end(START_SECS) == errors.SIGNAL_BASE + signal.SIGINT
        assert (fleet.report().status, fleet.checkpoint().step) == ("stopped", stopped.step)


@pytest.mark.extended
def test_a_run_stops_while_a_ps_is_away(tmp_path: Path) -> None:
    with training(
        tmp_path, fleet={"workers": 1}, train={"steps": 2000}, deadlines={"stop_secs": 10 * START_SECS}
    ) as fleet:
        fleet.wait_for_step(10)
        fleet.kill("ps", 0)
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end() == errors.SIGNAL_BASE + signal.SIGTERM
        assert fleet.report().status == "stopped"
        assert fleet.checkpoint().step == 0


@pytest.mark.extended
def test_a_stop_while_the_chief_starts_again_saves_what_the_others_have_trained(tmp_path: Path) -> None:
    """Its program is not built in time; the other worker trains without it."""
    with training(tmp_path, update={"mode": "async"}, train={"steps": 2000}) as fleet:
        fleet.wait_for_step(5)
        fleet.gates.hold("build")
        fleet.kill("worker", 0)
        text = "building the model and tracing a step"
        fleet.wait_for(
            lambda: len([entry for entry in fleet.log() if entry["message"] == text]) == 2, START_SECS, "the next chief"
        )
        [shard] = fleet.shards()
        assert fleet.checkpoint().step == 0
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end() == errors.SIGNAL_BASE + signal.SIGTERM
        report = fleet.report()
        assert (report.status, report.exit_code) == ("stopped", errors.SIGNAL_BASE + signal.SIGTERM)
        assert shard.step < fleet.checkpoint().step == report.final_step


@pytest.mark.extended
def test_a_stop_waits_for_the_step_in_progress_and_a_run_that_cannot_stop_in_time_is_ended(tmp_path: Path) -> None:
    deadlines = {"stop_secs": 3, "slow_secs": STANDSTILL_SECS}
    with training(tmp_path, checkpoint={"every_steps": 10}, deadlines=deadlines) as fleet:
        fleet.wait_for(lambda: fleet.entries("checkpoint"), START_SECS, "a checkpoint")
        fleet.gates.hold(1)
        fleet.wait_for(lambda: fleet.entries("slow_data", index=1), START_SECS, "worker 1 to wait for its data")
        [shard] = fleet.shards()
        asked = time.monotonic()
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end() == errors.SIGNAL_BASE + signal.SIGTERM
        assert 3 <= time.monotonic() - asked < 3 + END_SECS
        report = fleet.report()
        assert (report.status, report.exit_code) == ("stopped", errors.SIGNAL_BASE + signal.SIGTERM)
        assert fleet.checkpoint().step > 0
        planned = [entry["step"] for entry in fleet.log() if entry["message"].startswith("stop scheduled")]
        assert planned == [shard.step + 1]


def test_a_second_launcher_in_a_folder_is_refused_and_a_stop_before_training_ends_at_once(tmp_path: Path) -> None:
    with training(tmp_path, fleet={"workers": 1}) as fleet:
        fleet.wait_for(lambda: len(processes(fleet.out)) == 2, START_SECS, "two processes")
        second = psfleet(Path.cwd(), *fleet.arguments, timeout_secs=START_SECS)
        assert second.returncode == errors.USAGE
        assert second.stderr == f"psfleet: --out {fleet.out}: another run is using it, expected another folder\n"
        assert fleet.launcher.poll() is None
        assert len(processes(fleet.out)) == 2
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end(END_SECS) == errors.SIGNAL_BASE + signal.SIGINT
        assert fleet.report().status == "stopped"


def stop(fleet: Fleet, number: signal.Signals, timeout_secs: float = END_SECS) -> int:
    """Stops a run by a signal and checks what it left; the step of its checkpoint."""
    seen = fleet.step()
    fleet.launcher.send_signal(number)
    assert fleet.end(timeout_secs) == errors.SIGNAL_BASE + number
    report = fleet.report()
    assert (report.status, report.exit_code) == ("stopped", errors.SIGNAL_BASE + number)
    step = fleet.checkpoint().step
    assert report.checkpoint is not None
    assert report.final_step == report.checkpoint.step == step
    assert seen < step < fleet.steps
    return step


def check_gradients_of_each_step(fleet: Fleet, step: int) -> None:
    """Each worker gave one gradient to each step."""
    used = {index: gradients.used for index, gradients in fleet.report().gradients.per_worker.items()}
    assert used == {"0": step, "1": step}


def check_resumed(fleet: Fleet, stopped: int) -> None:
    """Waits until the run trains again; it started at the step of the checkpoint that it was stopped with."""
    fleet.wait_for_step(stopped + 1)
    assert [entry["step"] for entry in fleet.log() if entry["message"].startswith("restoring from")][-1] == stopped
    first = next(entry["step"] for entry in fleet.entries("progress") if entry["step"] > stopped)
    assert first <= stopped + FIRST_STEPS
