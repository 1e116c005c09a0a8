"""The model of a prediction in containers, and what they cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint
from support.scripted_platform import ScriptedPlatform, ended, killed, member
from support.study_samples import JOB

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import NoCheckpointError, UsageError
from psfleet.job.activity import Activity
from psfleet.job.prediction_order import PredictionOrder
from psfleet.launch.platform import Member
from psfleet.predictions.platform_model import PlatformModel, find_model
from psfleet.service import settings
from psfleet.sweep.database import DATABASE, opened, optuna_module


@pytest.fixture
def place() -> ScriptedPlatform:
    return ScriptedPlatform([])


def job_file(folder: Path, **sections: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, "fleet": {"workers": 3}, **sections}))
    return path


def study_file(folder: Path) -> Path:
    job_file(folder)
    study = {
        "name": "small",
        "job": "job.yaml",
        "space": {"train.batch_size": {"choice": [1, 2]}},
        "objective": {"metric": "loss", "direction": "minimize"},
        "search": {"kind": "grid"},
        "fleet": {"workers": 5},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def found_in(found: PlatformModel) -> tuple[str, Path, int, str, str]:
    return found.name, found.home, found.workers, found.folder, found.fleet


def test_a_job_file_stands_for_the_results_of_its_fleet(tmp_path: Path, place: ScriptedPlatform) -> None:
    found = find_model(place, str(job_file(tmp_path)), 20, False)
    assert found_in(found) == ("tiny", tmp_path, 3, "", "tiny")
    assert (found.step, found.best, found.job["container"]["worker_image"]) == (20, False, "mine:1")


def test_a_study_file_stands_for_the_results_of_its_fleet(tmp_path: Path, place: ScriptedPlatform) -> None:
    found = find_model(place, str(study_file(tmp_path)), None, False)
    assert found_in(found) == ("small", tmp_path, 5, "", "small")
    with pytest.raises(UsageError, match="whose best trial is used, expected neither --step nor --best"):
        find_model(place, str(study_file(tmp_path)), None, True)


def test_a_study_without_a_fleet_is_that_of_this_machine(
    tmp_path: Path, place: ScriptedPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place.keeps_results = False
    path = str(study_file(tmp_path))
    with pytest.raises(UsageError, match="study small has results neither on this platform nor in"):
        find_model(place, path, None, False)
    folder = tmp_path / "studies" / "small"
    folder.mkdir(parents=True)
    (folder / DATABASE).touch()
    assert found_in(find_model(place, path, None, False)) == ("small", tmp_path, 5, str(folder), "")


def test_a_run_folder_stands_for_the_checkpoint_that_it_has_now(tmp_path: Path, place: ScriptedPlatform) -> None:
    trained(tmp_path)
    found = find_model(place, str(tmp_path), 0, False)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert found_in(found) == ("net", tmp_path, 1, str(checkpoint), "")
    assert (found.step, found.best) == (None, False)
    with pytest.raises(UsageError, match="has no checkpoint of that step"):
        find_model(place, str(tmp_path), 7, False)


def test_a_run_folder_whose_program_is_elsewhere_is_refused(tmp_path: Path, place: ScriptedPlatform) -> None:
    (tmp_path / "elsewhere").mkdir()
    trained(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "here")
    with pytest.raises(UsageError, match="elsewhere, is not on this machine, expected the job file of a run"):
        find_model(place, str(tmp_path / "here"), None, False)


def test_what_has_no_model_is_refused(tmp_path: Path, place: ScriptedPlatform) -> None:
    place.keeps_results = False
    with pytest.raises(UsageError, match="no volume with results of fleet tiny is in the script, expected psfleet up "):
        find_model(place, str(job_file(tmp_path)), None, False)
    with pytest.raises(NoCheckpointError, match="no checkpoint there"):
        find_model(place, str(tmp_path), None, False)


def test_a_job_with_a_store_needs_no_results_on_the_platform(tmp_path: Path, place: ScriptedPlatform) -> None:
    place.keeps_results = False
    job = job_file(tmp_path, checkpoint={"store": "s3://bucket/run"}, tls=True)
    found = find_model(place, str(job), 20, False)
    assert (*found_in(found), found.url, found.step) == ("tiny", tmp_path, 3, "", "", "s3://bucket/run", 20)


def test_a_url_stands_for_the_checkpoint_that_the_store_has_now(
    tmp_path: Path, place: ScriptedPlatform, bucket: StoreFolder
) -> None:
    (folder,) = (trained(tmp_path) / "checkpoints").iterdir()
    for path in folder.iterdir():
        (bucket / "checkpoints" / folder.name / path.name).write_bytes(path.read_bytes())
    found = find_model(place, str(bucket), 0, False)
    assert (*found_in(found), found.url, found.step) == (
        "net", tmp_path, 1, "", "", f"{bucket}/checkpoints/{folder.name}", None,
    )  # fmt: skip


def test_the_folder_of_a_study_names_no_program(tmp_path: Path, place: ScriptedPlatform) -> None:
    study = optuna_module().create_study(storage=opened(tmp_path / DATABASE), study_name="small")
    trial = study.ask()
    trial.set_user_attr("job", json.dumps(JOB))
    study.tell(trial, 1.0)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "00000.safetensors").touch()
    with pytest.raises(UsageError, match="is the folder of a study, expected its study file"):
        find_model(place, str(tmp_path), None, False)


@pytest.mark.parametrize(
    ("driver", "step"),
    [(member("chief"), 0), (killed("chief"), 0), (ended("chief"), 4), (ended("chief", code=75), 4)],
    ids=["runs", "is started again", "is done", "has failed"],
)
def test_the_checkpoint_of_a_prediction_that_is_over_is_not_that_of_the_next_one(
    tmp_path: Path, driver: Member, step: int
) -> None:
    trained(tmp_path)
    before = find_model(ScriptedPlatform([]), str(tmp_path), None, False)
    order = PredictionOrder(
        source="/model", step=None, best=False, data="a:b", out="predictions.npz", workers=1, chosen=before.chosen
    )
    place = ScriptedPlatform([driver])
    place.driven = Activity(
        kind="prediction",
        driver="psfleet.predictions",
        worker="worker_service.predictions",
        driver_variables={settings.PREDICTION: order.model_dump_json()},
        worker_variables={},
        model_folder=before.folder,
        model_fleet="",
    )
    with_checkpoint(tmp_path, 4, KERNEL, BIAS)
    found = find_model(place, str(tmp_path), None, False)
    assert Path(found.folder).name == f"{step:08}-g1"
