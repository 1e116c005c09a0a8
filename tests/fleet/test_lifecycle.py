"""How a run is stopped, resumes and ends, and that a folder belongs to one run at a time."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.commands import psfleet
from support.local_fleet import END_SECS, START_SECS, Fleet, processes, training

from psfleet import errors
from psfleet.report.schema import Report

FIRST_STEPS = 75
"""The chief logs its progress twice a second: a run that resumes has logged a step before it has made so many."""
SHORT: Mapping[str, Any] = {"fleet": {"workers": 1}, "train": {"steps": 20}, "checkpoint": {"every_steps": 8}}
"""Sections of a run with several checkpoints that ends soon."""


def test_a_stopped_run_resumes_at_the_step_where_it_stopped(tmp_path: Path) -> None:
    """Stopped by Ctrl-C in an evaluation that never ends, then by SIGTERM while a worker is away.

    Each time another number of processes resumes it.
    """
    then = {"ps": 2, "workers": 1}
    with training(tmp_path, train={"steps": 2000}, evaluate={"every_steps": 5}) as fleet:
        fleet.wait_for_step(20)
        fleet.gates.hold("evaluation")
        fleet.wait_for_step(fleet.step() + 20)
        first = stop(fleet, signal.SIGINT)
        check_gradients_of_each_step(fleet, first)
        fleet.gates.release("evaluation")
    with training(tmp_path, train={"steps": 2000}) as fleet:
        check_resumed(fleet, first)
        fleet.kill("worker", 1)
        second = stop(fleet, signal.SIGTERM, START_SECS)
        assert second > first
    with training(tmp_path, train={"steps": second + 50}, fleet=then) as fleet:
        check_resumed(fleet, second)
        fleet.gates.hurry()
        report = fleet.done()
        assert [ps.used for ps in report.gradients.per_ps] == [then["workers"] * 50] * then["ps"]
        assert report.gradients.since_step == second
        assert (report.restarts, report.generation) == (0, 3)


def test_a_run_stops_while_a_ps_is_away(tmp_path: Path) -> None:
    with training(tmp_path, train={"steps": 2000}, deadlines={"stop_secs": 10 * START_SECS}) as fleet:
        fleet.wait_for_step(20)
        fleet.kill("ps", 0)
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end() == errors.SIGNAL_BASE + signal.SIGTERM
        assert fleet.report().status == "stopped"
        assert fleet.checkpoint().step == 0


def test_a_run_that_cannot_stop_in_time_is_ended(tmp_path: Path) -> None:
    with training(tmp_path, checkpoint={"every_steps": 10}, deadlines={"stop_secs": 3}) as fleet:
        fleet.wait_for(lambda: fleet.entries("checkpoint"), START_SECS, "a checkpoint")
        fleet.gates.hold(1)
        asked = time.monotonic()
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end() == errors.SIGNAL_BASE + signal.SIGTERM
        assert 3 <= time.monotonic() - asked < 3 + END_SECS
        report = fleet.report()
        assert (report.status, report.exit_code) == ("stopped", errors.SIGNAL_BASE + signal.SIGTERM)
        assert fleet.checkpoint().step > 0


def test_a_program_with_its_own_handlers_and_processes_is_stopped_and_killed_as_any(tmp_path: Path) -> None:
    programs = ("signalled_program", "paced_program")
    with training(tmp_path, programs=programs, train={"steps": 2000}, fleet={"workers": 2}) as fleet:
        fleet.wait_for_step(20)
        loaders = sorted(fleet.gates.folder.glob("loader-*"))
        assert len(loaders) == 2
        fleet.kill("worker", 1)
        others = fleet.wait_for(lambda: set(fleet.gates.folder.glob("loader-*")) - {*loaders}, START_SECS, "a loader")
        fleet.wait_for_step(fleet.step() + 20)
        left = [int(path.name.removeprefix("loader-")) for path in {*loaders, *others}]
        assert len([pid for pid in left if pid in processes(fleet.out)]) == 2, "that of the killed worker has ended"
        stop(fleet, signal.SIGTERM)


def test_a_second_launcher_in_a_folder_is_refused_and_a_stop_before_training_ends_at_once(tmp_path: Path) -> None:
    with training(tmp_path) as fleet:
        fleet.wait_for(lambda: len(processes(fleet.out)) == 3, START_SECS, "three processes")
        second = psfleet(Path.cwd(), *fleet.arguments, timeout_secs=START_SECS)
        assert second.returncode == errors.USAGE
        assert second.stderr == f"psfleet: --out {fleet.out}: another run is using it, expected another folder\n"
        assert fleet.launcher.poll() is None
        assert len(processes(fleet.out)) == 3
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end(END_SECS) == errors.SIGNAL_BASE + signal.SIGINT
        assert fleet.report().status == "stopped"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that reached its target."""
    folder = tmp_path_factory.mktemp("finished")
    with training(folder, step_secs=0, **SHORT) as fleet:
        fleet.done()
    return folder


def test_a_finished_run_is_not_trained_again(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "again")
    with training(folder, **SHORT) as fleet:
        assert fleet.end() == errors.DONE, fleet.tails()
        report = fleet.report()
        check_counts_kept(report, finished)
        assert (report.status, [each.status for each in report.attempts]) == ("done", ["done", "done"])
        assert (report.attempts[1].first_step, report.attempts[1].final_step) == (fleet.steps, fleet.steps)
        assert report.checkpoint is not None
        assert report.checkpoint.path == str(fleet.checkpoint().folder)
        assert report.eval.keys() == {"loss"}
        assert not fleet.entries("progress")


def test_broken_checkpoints_are_refused_unless_the_run_is_fresh(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "broken")
    parts = sorted((folder / "out" / "checkpoints").rglob("*.safetensors"))
    for part in parts:
        os.truncate(part, part.stat().st_size - 1)
    with training(folder, **SHORT) as fleet:
        assert fleet.end() == errors.NO_CHECKPOINT, fleet.tails()
        report = fleet.report()
        check_counts_kept(report, finished)
        assert (report.status, report.exit_code) == ("failed", errors.NO_CHECKPOINT)
        assert [each.exit_code for each in report.attempts] == [0, errors.NO_CHECKPOINT]
        assert report.attempts[1].first_step is None
        assert report.error == f"none of the {len(parts)} checkpoints in {fleet.out / 'checkpoints'} is valid"
        assert sorted((fleet.out / "checkpoints").rglob("*.safetensors")) == parts
    with training(folder, "--fresh", step_secs=0, **SHORT) as fleet:
        report = fleet.done()
        assert (report.generation, len(report.attempts)) == (1, 1)


def check_counts_kept(report: Report, finished: Path) -> None:
    """An attempt that trained nothing leaves what the one before it measured."""
    before = Report.read(finished / "out")
    assert before.gradients.pushed >= before.target_step
    for name in ("final_step", "gradients", "placement", "loss", "step_secs", "seconds", "examples_per_sec"):
        assert getattr(report, name) == getattr(before, name), name
    first = report.attempts[0]
    assert (first.first_step, first.final_step) == (0, before.final_step)


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
