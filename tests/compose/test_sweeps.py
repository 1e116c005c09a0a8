"""`psfleet sweep --on compose`: the driver of a study and its workers as containers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.numpy
from support.compose_fleet import END_SECS, START_SECS
from support.compose_lab import commanded
from support.compose_study import SPACE, ComposeStudy, compose_study
from support.images import docker
from support.swept_study import SweptStudy

pytestmark = pytest.mark.timeout(600)


def wait_for_trials(seen: ComposeStudy) -> None:
    """Until each worker trains a trial."""
    seen.wait_for(lambda: all(seen.trials_begun(index) for index in (0, 1)), START_SECS, "a trial on each worker")


def rows(seen: ComposeStudy) -> list[dict[str, object]]:
    """What `psfleet status --json` prints."""
    found: list[dict[str, object]] = json.loads(seen.run("status", seen.name, "--on", "compose", "--json"))
    return found


@pytest.mark.core
def test_a_study_in_containers_equals_one_on_processes(tmp_path: Path) -> None:
    here = SweptStudy.make(tmp_path, SPACE, fleet={"workers": 2})
    commanded("sweep", str(here.folder / "study.yaml"), "--out", str(here.out))
    expected = {path.name: safetensors.numpy.load_file(path) for path in (here.out / "weights").iterdir()}
    with compose_study(tmp_path / "study", tls=True) as seen:
        seen.sweep()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        assert seen.weights() == expected
        assert len(expected) == 2
        screen = seen.screen.read_text()
        assert "2 of 2: trial" in screen
        assert "best: trial" in screen
        assert set(seen.left()) == {"volumes"}
        assert {path.name for path in (seen.out / "logs").iterdir()} == {"driver.log", "worker-0.log", "worker-1.log"}
        # Nothing is left to do in the copy, for processes of this machine.
        again = seen.run("sweep", str(seen.folder / "study.yaml"), "--out", str(seen.out))
        assert "best: trial" in again


def test_killed_workers_and_a_killed_driver_cost_no_finished_trial(tmp_path: Path) -> None:
    with compose_study(tmp_path / "study", held=True) as seen:
        seen.sweep()
        wait_for_trials(seen)
        seen.kill_inside("worker-0")
        seen.wait_for(lambda: seen.trials_begun(0) == 2, START_SECS, "the repetition of a trial in a new process")
        docker("kill", seen.container("worker-1"))
        seen.wait_for(lambda: seen.trials_begun(1) == 2, START_SECS, "the repetition of the other one")
        seen.kill_inside("chief")
        seen.wait_for(lambda: len(seen.entries("listening")) == 2, START_SECS, "another process of the driver")
        seen.release()
        assert seen.end() == 0, seen.tails()
        assert [row["state"] for row in seen.rows()] == ["complete"] * 2
        assert "worker 0 died (another process has taken its place) and is started again" in seen.screen.read_text()


def test_a_frozen_worker_loses_its_trial_and_comes_back(tmp_path: Path) -> None:
    with compose_study(tmp_path / "study", held=True, step_secs=3) as seen:
        seen.sweep()
        wait_for_trials(seen)
        docker("pause", seen.container("worker-0"))
        text = "worker 0 died (no sign of life for 3 s) and is started again"
        seen.wait_for(lambda: text in seen.screen.read_text(), START_SECS, "the loss of its trial")
        docker("unpause", seen.container("worker-0"))
        seen.wait_for(lambda: seen.trials_begun(0) == 2, START_SECS, "a trial in a new process")
        seen.release()
        assert seen.end() == 0, seen.tails()
        assert [row["state"] for row in seen.rows()] == ["complete"] * 2


def test_a_study_continues_after_ctrl_c_and_after_down(tmp_path: Path) -> None:
    with compose_study(tmp_path / "study", held=True) as seen:
        seen.sweep()
        wait_for_trials(seen)
        seen.leave()
        assert "detached; the study continues" in seen.screen.read_text()
        found = {str(row["role"]): row["state"] for row in rows(seen)}
        assert found == {"chief": "running", "worker": "running"}
        assert "trial " in seen.run("logs", seen.name, "worker-0", "--on", "compose")
        refused = seen.run("up", str(seen.folder / "other.yaml"), "--out", str(tmp_path / "run"), code=64)
        assert f"fleet {seen.name} is on the Docker engine as a study" in refused
        seen.kill_inside("worker-0")
        seen.wait_for(lambda: seen.trials_begun(0) == 2, START_SECS, "the repetition of a trial in a new process")
        seen.sweep()
        seen.wait_for(lambda: "worker 0 died" in seen.screen.read_text(), START_SECS, "the fleet to be attached to")
        seen.run("down", seen.name, "--on", "compose")
        assert seen.end() == 143, seen.tails()
        assert set(seen.left()) == {"volumes"}
        seen.release()
        seen.sweep()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        assert [row["state"] for row in seen.rows()] == ["complete"] * 2
        seen.run("down", seen.name, "--results", "--on", "compose")
        assert seen.left() == {}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise ValueError('broken')", "ValueError: broken"),
        pytest.param("os._exit(0)", "the program ended worker", marks=pytest.mark.extended),
    ],
)
def test_a_program_that_fails_in_each_trial_ends_the_study(tmp_path: Path, statement: str, message: str) -> None:
    with compose_study(tmp_path / "study") as seen:
        program = f"import os\n\ndef build(**options):\n    {statement}\n"
        (seen.folder / "swept_program.py").write_text(program)
        seen.sweep()
        assert seen.end(START_SECS + END_SECS) == 70, seen.tails()
        assert message in seen.screen.read_text()
        assert "every member to end" not in seen.screen.read_text(), "workers know that nothing is left to do"
        assert set(seen.left()) == {"volumes"}
