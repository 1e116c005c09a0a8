"""How a run is stopped, goes on, ends, and is kept apart from others in its folder."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.commands import psfleet
from support.local_fleet import END_SECS, START_SECS, Fleet, processes, training

from psfleet import errors

FIRST_STEPS = 75
"""The chief tells of its progress twice a second: a run that goes on has told of a step before so many are made."""


@pytest.mark.parametrize(
    ("number", "then"),
    [(signal.SIGINT, {"ps": 1, "workers": 2}), (signal.SIGTERM, {"ps": 2, "workers": 1})],
    ids=["Ctrl-C and the same fleet", "SIGTERM and another fleet"],
)
def test_a_stopped_run_goes_on_at_the_step_where_it_was(
    tmp_path: Path, number: signal.Signals, then: Mapping[str, int]
) -> None:
    with training(tmp_path, train={"steps": 2000}) as fleet:
        fleet.wait_for_step(40)
        stopped = stop(fleet, number)
    with training(tmp_path, train={"steps": stopped + 100}, fleet=then) as fleet:
        fleet.wait_for_step(stopped + 1)
        fleet.gates.hurry()
        report = fleet.done()
        assert [entry["step"] for entry in fleet.log() if entry["message"].startswith("restoring from")] == [stopped]
        assert stopped < fleet.entries("progress")[0]["step"] <= stopped + FIRST_STEPS
        assert [ps.used for ps in report.gradients.per_ps] == [then["workers"] * 100] * then["ps"]
        assert report.gradients.since_step == stopped
        assert (report.restarts, report.generation) == (0, 2)


@pytest.mark.parametrize(("role", "index", "saves"), [("worker", 1, True), ("ps", 0, False)])
def test_a_run_stops_while_a_process_is_away(tmp_path: Path, role: str, index: int, saves: bool) -> None:
    with training(tmp_path, train={"steps": 2000}, deadlines={"stop_secs": 10 * START_SECS}) as fleet:
        fleet.wait_for_step(40)
        fleet.kill(role, index)
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end() == errors.SIGNAL_BASE + signal.SIGTERM
        assert fleet.report().status == "stopped"
        assert (fleet.checkpoint().step > 40) == saves


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
        fleet.wait_for_step(fleet.last_step() + 20)
        left = [int(path.name.removeprefix("loader-")) for path in {*loaders, *others}]
        assert len([pid for pid in left if pid in processes(fleet.out)]) == 2, "that of the killed worker has ended"
        stop(fleet, signal.SIGTERM)


def test_a_run_that_is_stopped_before_it_trains_ends_at_once(tmp_path: Path) -> None:
    with training(tmp_path) as fleet:
        fleet.wait_for(lambda: len(processes(fleet.out)) == 3, START_SECS, "three processes")
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end(END_SECS) == errors.SIGNAL_BASE + signal.SIGINT
        assert fleet.report().status == "stopped"


def test_a_second_launcher_in_a_folder_is_refused(tmp_path: Path) -> None:
    with training(tmp_path) as fleet:
        fleet.wait_for(lambda: processes(fleet.out), START_SECS, "the first process")
        second = psfleet(Path.cwd(), *fleet.arguments, timeout_secs=START_SECS)
        assert second.returncode == errors.USAGE
        assert second.stderr == f"psfleet: --out {fleet.out}: another run is using it, expected another folder\n"
        assert fleet.launcher.poll() is None
        assert len(processes(fleet.out)) == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that reached its target."""
    folder = tmp_path_factory.mktemp("finished")
    with training(folder, step_secs=0, checkpoint={"every_steps": 40}) as fleet:
        fleet.done()
    return folder


def test_a_finished_run_is_not_trained_again(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "again")
    with training(folder) as fleet:
        assert fleet.end() == errors.DONE, fleet.tails()
        report = fleet.report()
        assert (report.status, report.final_step, report.gradients.pushed) == ("done", fleet.steps, 0)
        assert report.checkpoint is not None
        assert report.checkpoint.path == str(fleet.checkpoint().folder)
        assert report.eval.keys() == {"loss"}
        assert not fleet.entries("progress")


def test_broken_checkpoints_are_refused_unless_the_run_is_fresh(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "broken")
    parts = sorted((folder / "out" / "checkpoints").rglob("*.safetensors"))
    for part in parts:
        os.truncate(part, part.stat().st_size - 1)
    with training(folder) as fleet:
        assert fleet.end() == errors.NO_CHECKPOINT, fleet.tails()
        report = fleet.report()
        assert (report.status, report.exit_code) == ("failed", errors.NO_CHECKPOINT)
        assert report.error == f"none of the {len(parts)} checkpoints in {fleet.out / 'checkpoints'} is valid"
        assert sorted((fleet.out / "checkpoints").rglob("*.safetensors")) == parts
    with training(folder, "--fresh", step_secs=0) as fleet:
        assert fleet.done().generation == 1


def stop(fleet: Fleet, number: signal.Signals) -> int:
    """Stops a run by a signal and checks what it left; the step at which it goes on."""
    seen = fleet.last_step()
    fleet.launcher.send_signal(number)
    assert fleet.end(END_SECS) == errors.SIGNAL_BASE + number
    report = fleet.report()
    assert (report.status, report.exit_code) == ("stopped", errors.SIGNAL_BASE + number)
    step = fleet.checkpoint().step
    assert report.checkpoint is not None
    assert report.final_step == report.checkpoint.step == step
    assert seen < step < fleet.steps
    used = {index: gradients.used for index, gradients in report.gradients.per_worker.items()}
    assert used == {"0": step, "1": step}
    return step
