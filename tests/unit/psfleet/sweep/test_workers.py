"""The workers of a study without processes: their trials, deaths and failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.clock import Clock
from support.scripted_worker import ScriptedWorker

from psfleet import errors
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job import trial_records
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import StoredStudy
from psfleet.sweep.study_file import Study
from psfleet.sweep.workers import MAX_DEATHS, Workers

JOB: dict[str, Any] = {
    "name": "tiny",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 20, "batch_size": 4},
    "deadlines": {"start_secs": 20, "step_secs": 5},
}
STUDY = {
    "name": "digits",
    "job": "job.yaml",
    "space": {"train.batch_size": {"choice": [1, 2]}},
    "objective": {"metric": "loss", "direction": "minimize"},
    "search": {"kind": "random", "trials": 4},
}
TRIALS = 4


class Swept:
    """A study with scripted workers, the first of which has a trial.

    Attributes:
        processes: Of the workers.
    """

    def __init__(self, folder: Path, number: int = 2) -> None:
        loaded = LoadedStudy(Study.model_validate(STUDY), JOB, folder)
        self.clock = Clock()
        self.stored = StoredStudy(loaded, folder)
        self.processes = [ScriptedWorker(index) for index in range(number)]
        self.workers = Workers(self.stored, self.processes, loaded, self.clock)
        self.workers.start()
        self.assign()

    def assign(self) -> None:
        """Gives the first idle worker a trial."""
        self.workers.assign(self.workers.idle()[0], self.stored.ask(TRIALS))

    def idle(self) -> Sequence[int]:
        return [worker.index for worker in self.workers.idle()]

    def assigned(self, index: int) -> int | None:
        """What the worker finds in the storage."""
        found: int | None = self.stored.study.user_attrs[trial_records.assignment(index)]
        return found

    def states(self) -> list[str]:
        return [trial.state.name for trial in self.stored.study.get_trials(deepcopy=False)]


def test_a_worker_is_idle_until_it_has_a_trial_and_after_that_has_finished(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    assert swept.idle() == [1]
    assert (swept.assigned(0), swept.assigned(1)) == (1, None)
    swept.processes[1].is_absent = True
    assert not swept.idle()
    swept.workers.release({7})
    assert not swept.idle()
    swept.workers.release({0})
    assert swept.idle() == [0]


def test_the_trial_of_a_dead_worker_is_lost_and_repeated(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.processes[0].end(137)
    assert swept.workers.revive() == ["worker 0 died (killed by SIGKILL) and is started again; trial 0 is lost"]
    assert swept.processes[0].causes == ["", "killed by SIGKILL"]
    assert (swept.idle(), swept.assigned(0)) == ([0, 1], None)
    assert swept.states() == ["FAIL", "WAITING"]
    assert not swept.workers.revive()


def test_a_frozen_worker_is_killed_before_its_trial_is_given_to_another_one(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    texts = []
    for process in swept.processes:
        process.sign += 1
    for _ in range(6):
        swept.clock.now += 1
        swept.processes[1].sign += 1
        texts += swept.workers.revive()
    assert texts == ["worker 0 died (no sign of life for 5 s) and is started again; trial 0 is lost"]
    assert swept.states() == ["FAIL", "WAITING"]


def test_a_program_that_ends_its_worker_fails_its_trial_alone(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.processes[0].end(3)
    (text,) = swept.workers.revive()
    assert text == "the program ended worker 0 with exit code 3, which is started again; trial 0 has failed"
    (failed,) = swept.stored.finished()
    assert failed.user_attrs[trial_records.EXIT_CODE] == errors.PROGRAM_FAILED
    assert swept.idle() == [0, 1]


def test_a_failure_that_would_recur_ends_the_study(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.processes[1].end(errors.BAD_JOB, "no certificate")
    with pytest.raises(PsfleetError, match=r"worker 1 failed: no certificate \(exit code 78\)") as caught:
        swept.workers.revive()
    assert caught.value.exit_code == errors.BAD_JOB


def test_a_worker_that_dies_again_and_again_ends_the_study_unless_trials_finish(tmp_path: Path) -> None:
    swept = Swept(tmp_path, number=1)
    for _ in range(MAX_DEATHS):
        swept.processes[0].end(75)
        assert len(swept.workers.revive()) == 1
    swept.assign()
    swept.workers.release({trial.number for trial in swept.stored.trials()})
    for _ in range(MAX_DEATHS):
        swept.processes[0].end(75)
        assert len(swept.workers.revive()) == 1
    swept.processes[0].end(75)
    with pytest.raises(LostPeerError, match="worker 0 died 5 times without a finished trial, last: exit code 75"):
        swept.workers.revive()


def test_a_study_without_any_worker_ends(tmp_path: Path) -> None:
    swept = Swept(tmp_path)
    swept.clock.now += 19
    assert not swept.workers.revive()
    for process in swept.processes:
        process.is_absent = True
    swept.clock.now += 20
    assert not swept.workers.revive()
    swept.clock.now += 1
    with pytest.raises(LostPeerError, match="no worker was there for 20 s, expected worker 0, worker 1"):
        swept.workers.revive()
