"""The best trials of a study are those with the best objective whose weights were kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.errors import UsageError
from psfleet.job import trial_records
from psfleet.job.job import job_from_json
from psfleet.serving.sources import best_trials, of_study, study_folder
from psfleet.sweep.database import DATABASE, opened, optuna_module

JOB = """{
    "name": "tiny", "program": "models.digits:build", "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 20, "batch_size": 4}
}"""


def _study(folder: Path, direction: str, kept: list[int]) -> Path:
    """Trials of the values 0.5, 0.9, none, 0.7 and 0.9."""
    optuna = optuna_module()
    study = optuna.create_study(storage=opened(folder / DATABASE), study_name="digits", direction=direction)
    states = optuna.trial.TrialState
    for value in (0.5, 0.9, None, 0.7, 0.9):
        state = states.FAIL if value is None else states.COMPLETE
        study.add_trial(optuna.trial.create_trial(state=state, value=value, user_attrs={trial_records.JOB: JOB}))
    (folder / "weights").mkdir()
    for number in kept:
        trial_records.weights_file(folder, number).touch()
    return folder


def test_the_best_trials_come_first_and_of_equal_ones_the_earlier(tmp_path: Path) -> None:
    name, found = best_trials(_study(tmp_path, "maximize", [1, 3, 4]), 3)
    assert (name, list(found)) == ("digits", [1, 4, 3])
    source = found[4]
    assert source.weights == str(tmp_path / "weights" / "00004.safetensors")
    assert source.program_folder == str(tmp_path)
    assert job_from_json(source.job).program == "best_program:build", "the module beside the results"
    assert of_study(tmp_path, 3).members == tuple(found.values())


def test_the_lowest_value_is_the_best_if_the_study_minimizes(tmp_path: Path) -> None:
    _, found = best_trials(_study(tmp_path, "minimize", [0, 1]), 1)
    assert list(found) == [0]


def test_more_trials_than_weights_were_kept_of_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--top 3: .* has weights of the best 2 trials"):
        of_study(_study(tmp_path, "maximize", [1, 4]), 3)


def test_a_folder_is_that_of_a_study_by_its_database(tmp_path: Path) -> None:
    assert study_folder(str(tmp_path)) is None
    _study(tmp_path, "minimize", [])
    assert study_folder(str(tmp_path)) == tmp_path
