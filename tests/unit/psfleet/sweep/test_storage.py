"""A study in Optuna's storage: reproducible trials, repetitions, and what may not change."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest

from psfleet.errors import BadJobError, StorageError, UsageError
from psfleet.job import trial_records
from psfleet.sweep import database
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import MAX_REPETITIONS, StoredStudy, num_trials
from psfleet.sweep.study_file import Study

JOB: dict[str, Any] = {
    "name": "tiny",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 20, "batch_size": 4},
}


def loaded(**fields: Any) -> LoadedStudy:
    study = {
        "name": "digits",
        "job": "job.yaml",
        "space": {"optimizer.learning_rate": {"float": [0.001, 0.1]}, "train.batch_size": {"choice": [1, 2]}},
        "objective": {"metric": "loss", "direction": "minimize"},
        "search": {"kind": "random", "trials": 4},
    }
    return LoadedStudy(Study.model_validate(study | fields), JOB, Path())


def asked(stored: StoredStudy, number: int) -> list[dict[str, Any]]:
    """The values of so many trials, which stay open."""
    trials = [stored.ask(100) for _ in range(number)]
    return [dict(trial.params) for trial in trials]


def complete(stored: StoredStudy, trial: Any) -> None:
    """Tells a value as a worker does, whose sampler is not that of the driver."""
    stored.study.sampler = optuna.samplers.RandomSampler()
    stored.study.tell(trial, 1.0)


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_a_restart_of_the_driver_changes_no_trial(tmp_path: Path, kind: str) -> None:
    search = {"kind": kind, "trials": 4, "seed": 3}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole = asked(StoredStudy(loaded(search=search), tmp_path / "a"), 4)
    parts = [values for _ in range(2) for values in asked(StoredStudy(loaded(search=search), tmp_path / "b"), 2)]
    assert whole == parts
    assert len({values["optimizer.learning_rate"] for values in whole}) == 4


def test_a_grid_has_each_combination_once(tmp_path: Path) -> None:
    space = {"train.steps": {"int": [5, 7]}, "train.batch_size": {"choice": [1, 2]}}
    study = loaded(space=space, search={"kind": "grid"})
    assert num_trials(study.study) == 6
    stored = StoredStudy(study, tmp_path)
    found = []
    while (trial := stored.ask(6)) is not None:
        found.append(tuple(trial.params[name] for name in space))
        complete(stored, trial)
    assert sorted(found) == [(steps, size) for steps in (5, 6, 7) for size in (1, 2)]


@pytest.mark.parametrize(("trials", "number"), [(4, 4), (9, 6)])
def test_a_grid_has_no_more_trials_than_the_study_wants(tmp_path: Path, trials: int, number: int) -> None:
    space = {"train.steps": {"int": [5, 7]}, "train.batch_size": {"choice": [1, 2]}}
    assert num_trials(loaded(space=space, search={"kind": "grid", "trials": trials}).study) == number


def test_a_lost_trial_is_repeated_with_its_values_until_it_has_failed(tmp_path: Path) -> None:
    stored = StoredStudy(loaded(), tmp_path)
    first = stored.ask(1)
    trial = first
    for _ in range(MAX_REPETITIONS):
        stored.lose(trial.number, "killed")
        stored.lose(trial.number, "killed")
        trial = stored.ask(1)
        assert trial.params == first.params
        assert [each.number for each in stored.trials()] == [trial.number]
    stored.lose(trial.number, "killed")
    assert stored.ask(1) is None
    (failed,) = stored.finished()
    assert (failed.number, failed.user_attrs[trial_records.ERROR]) == (MAX_REPETITIONS, "killed")


def test_a_repeated_trial_has_not_the_error_of_the_one_before(tmp_path: Path) -> None:
    stored = StoredStudy(loaded(), tmp_path)
    first = stored.ask(1)
    first.set_user_attr(trial_records.EXIT_CODE, 78)
    stored.lose(first.number, "killed")
    assert trial_records.EXIT_CODE not in stored.ask(1).user_attrs


def test_a_driver_that_ends_again_and_again_fails_no_trial(tmp_path: Path) -> None:
    values = []
    for _ in range(MAX_REPETITIONS + 3):
        stored = StoredStudy(loaded(), tmp_path)
        stored.lose_running("the driver ended")
        values.append(stored.ask(1).params)
    assert all(each == values[0] for each in values)
    assert not stored.finished()


def test_a_result_on_its_way_from_a_dead_worker_ends_no_study(tmp_path: Path) -> None:
    stored = StoredStudy(loaded(), tmp_path)
    first = stored.ask(1)

    def repeat_late(study: optuna.Study, lost: optuna.trial.FrozenTrial) -> None:
        complete(stored, first)
        optuna.storages.RetryHeartbeatStaleTrialCallback()(study, lost)

    stored._retry = repeat_late
    stored._retry.retry_history = optuna.storages.RetryHeartbeatStaleTrialCallback.retry_history
    stored.lose(first.number, "killed")
    assert [trial.number for trial in stored.trials()] == [1]


def test_a_driver_that_died_while_a_trial_was_lost_does_not_repeat_it_twice(tmp_path: Path) -> None:
    stored = StoredStudy(loaded(), tmp_path)
    trial = stored.ask(1)
    # The first of the three steps of `lose`.
    stored._retry(stored.study, stored.study.get_trials()[0])
    again = StoredStudy(loaded(), tmp_path)
    again.lose_running("the driver ended")
    repeated = again.ask(1)
    assert repeated.params == trial.params
    assert [each.number for each in again.trials()] == [repeated.number]
    assert len(again.study.get_trials()) == 2


def test_values_that_do_not_fit_each_other_are_a_failed_trial(tmp_path: Path) -> None:
    space = {"optimizer.name": {"choice": ["sgd", "momentum"]}, "optimizer.momentum": {"choice": [0.5]}}
    stored = StoredStudy(loaded(space=space, search={"kind": "grid"}), tmp_path)
    trial = stored.ask(2)
    assert trial.params["optimizer.name"] == "momentum"
    complete(stored, trial)
    assert stored.ask(2) is None
    errors = [each.user_attrs.get(trial_records.ERROR, "") for each in stored.finished()]
    assert sum("optimizer.momentum: unknown key" in error for error in errors) == 1


def test_the_database_is_in_its_folder_whatever_that_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "a?b#c%20d"
    folder.mkdir()
    StoredStudy(loaded(), folder)
    assert [path.name for path in folder.iterdir()] == ["study.db"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_study_of_another_name_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    StoredStudy(loaded(), tmp_path)
    with pytest.raises(BadJobError, match="has the study 'digits', expected 'letters'"):
        StoredStudy(loaded(name="letters"), tmp_path)


def test_errors_of_the_database_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_SECS", 0.1)
    stored = StoredStudy(loaded(), tmp_path)
    other = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for failing in (lambda: stored.ask(1), lambda: StoredStudy(loaded(), tmp_path)):
        with pytest.raises(StorageError, match=r"study.db: database is locked$"), database.storage_errors(tmp_path):
            failing()
    other.close()
    (tmp_path / "study.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(UsageError, match=r"study.db: file is not a database"), database.storage_errors(tmp_path):
        StoredStudy(loaded(), tmp_path)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"objective": {"metric": "loss", "direction": "maximize"}}, "objective"),
        ({"search": {"kind": "tpe", "trials": 4}}, "search"),
    ],
)
def test_another_study_in_the_same_folder_is_refused(tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    StoredStudy(loaded(), tmp_path)
    StoredStudy(loaded(search={"kind": "random", "trials": 9}, keep=2), tmp_path)
    with pytest.raises(BadJobError, match=f"{name} differs"):
        StoredStudy(loaded(**fields), tmp_path)
