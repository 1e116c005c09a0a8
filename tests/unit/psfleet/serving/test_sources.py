"""Whose models a service has: runs and trials, and what is refused."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint
from support.tiny_job import job

from psfleet.errors import NoCheckpointError, UsageError
from psfleet.job import trial_records
from psfleet.job.job import job_from_json
from psfleet.serving.sources import of_runs, of_study, study_folder
from psfleet.sweep.database import DATABASE, opened


def study(folder: Path, values: list[float]) -> Path:
    """The folder of a study whose trials have these losses, and their weights."""
    storage = opened(folder / DATABASE)
    found = optuna.create_study(storage=storage, study_name="digits", direction="minimize")
    (folder / "weights").mkdir()
    for value in values:
        trial = found.ask()
        trial.set_user_attr(trial_records.JOB, job().model_dump_json())
        found.tell(trial, value)
        trial_records.weights_file(folder, trial.number).touch()
    return folder


def test_each_run_is_a_member_and_the_model_has_the_name_of_their_job(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        trained(tmp_path / name)
    found = of_runs([str(tmp_path / "one"), str(tmp_path / "two")], None, False)
    assert found.name == "net"
    assert [each.run for each in found.members] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert of_runs([str(tmp_path / "one")], 0, False, "other").name == "other"


def test_a_run_without_a_checkpoint_or_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match="no checkpoint there"):
        of_runs([str(tmp_path)], None, False)
    trained(tmp_path)
    with pytest.raises(UsageError, match="is given twice"):
        of_runs([str(tmp_path)] * 2, None, False)
    with_checkpoint(tmp_path, 4, KERNEL, BIAS)
    with pytest.raises(UsageError, match=r"--step 3: .* expected one of 0, 4"):
        of_runs([str(tmp_path)], 3, False)


def test_the_best_trials_of_a_study_are_members_the_best_one_first(tmp_path: Path) -> None:
    folder = study(tmp_path, [0.5, 0.1, 0.3])
    assert study_folder(str(folder)) == folder
    found = of_study(folder, 2)
    assert found.name == "digits"
    assert [Path(each.weights).stem for each in found.members] == ["00001", "00002"]
    assert [job_from_json(each.job, "test").program for each in found.members] == [
        f"best_program:{job().program.partition(':')[2]}"
    ] * 2


def test_more_trials_than_have_weights_are_refused(tmp_path: Path) -> None:
    folder = study(tmp_path, [0.5, 0.1, 0.3])
    trial_records.weights_file(folder, 2).unlink()
    with pytest.raises(UsageError, match=r"--top 3: .* has weights of the best 2 trials"):
        of_study(folder, 3)
    with pytest.raises(UsageError, match="--top 4"):
        of_study(folder, 4)


def test_a_run_is_no_study(tmp_path: Path) -> None:
    assert study_folder(str(trained(tmp_path))) is None


def test_a_place_without_a_run_or_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match=r"missing: no such file or folder, expected a run, a checkpoint or a"):
        study_folder(str(tmp_path / "missing"))
    (tmp_path / "job.yaml").write_text(job().model_dump_json())
    with pytest.raises(
        UsageError, match=r"job\.yaml is a job file, expected a run folder, for example runs/tiny, or a"
    ):
        study_folder(str(tmp_path / "job.yaml"))


def test_a_store_is_no_study() -> None:
    assert study_folder("s3://bucket/run") is None
