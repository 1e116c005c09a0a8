"""`psfleet predict --on`: a prediction on a platform, from its start to the copied file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint
from support.scripted_platform import ScriptedPlatform, ended, log, member
from support.study_samples import JOB

from psfleet.errors import LostPeerError, PsfleetError, UsageError
from psfleet.job.prediction_order import PredictionOrder
from psfleet.launch import watcher
from psfleet.launch.platform import Member, Request
from psfleet.launch.watcher import TakenDownError
from psfleet.predictions.on_platform import predict_on
from psfleet.predictions.platform_model import PlatformModel, find_model
from psfleet.service import settings

RUNS = [member("chief", activity="prediction"), member("worker", 0, activity="prediction")]
DONE = [ended("chief", activity="prediction"), ended("worker", 0, activity="prediction")]
MODEL = PlatformModel("tiny", JOB, Path("/no"), 3, folder="/runs/tiny/checkpoints/00000020-g1")
PREDICTED = log({"event": "listening", "message": "hidden"}, {"event": "done", "message": "predictions of step 20"})


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.1)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """What the driver has written."""
    folder = tmp_path / "volume"
    folder.mkdir()
    (folder / "predictions.npz").write_bytes(b"all predictions")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The file of an earlier command."""
    path = tmp_path / "out.npz"
    path.write_text("of an earlier command")
    return path


def platform(volume: Path, *looks: list[Member], **logs: list[str]) -> ScriptedPlatform:
    return ScriptedPlatform(*looks, results=volume, logs=logs)


def predict(place: ScriptedPlatform, out: Path, **changes: Any) -> str:
    return predict_on(place, replace(MODEL, **changes), "data:set", out, 2)


def test_a_prediction_is_started_followed_copied_and_removed_with_what_it_has(volume: Path, out: Path) -> None:
    place = platform(volume, [], RUNS, RUNS, DONE, chief=PREDICTED)
    assert predict(place, out, step=20) == f"{out}: predictions of step 20"
    assert out.read_bytes() == b"all predictions"
    assert place.removed == [True]
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.npz", "state", "volume"]
    (request,) = place.applied
    assert (request.job.name, request.job.fleet.processes, request.job.least_workers) == ("tiny-predict", 3, 1)
    assert request.job.container.worker_image == "mine:1"
    assert request.activity is not None
    assert request.activity.model_folder == MODEL.folder
    order = PredictionOrder.from_json(request.activity.driver_variables["PSFLEET_PREDICTION"], "order")
    expected = PredictionOrder(source="/model", step=20, data="data:set", out="predictions.npz", workers=2)
    assert order == expected


def test_a_model_in_a_store_is_read_there_by_the_driver(volume: Path, out: Path) -> None:
    place = platform(volume, [], RUNS, DONE, chief=PREDICTED)
    predict(place, out, folder="", url="s3://bucket/run")
    (request,) = place.applied
    assert request.job.checkpoint.store == "s3://bucket/run"
    assert request.activity is not None
    order = PredictionOrder.from_json(request.activity.driver_variables["PSFLEET_PREDICTION"], "order")
    assert order.source == "s3://bucket/run"


@pytest.mark.parametrize(
    ("code", "expected", "is_deleted"), [(70, 70, True), (65, 65, True), (137, 75, False), (75, 75, False)]
)
def test_complete_shares_stay_after_a_temporary_error_alone(
    volume: Path, out: Path, code: int, expected: int, is_deleted: bool
) -> None:
    entry = {"level": "error", "event": "failed", "exit_code": code, "message": "the cause"}
    place = platform(volume, [], [ended("chief", 0, code, activity="prediction")], chief=log(entry))
    with pytest.raises(PsfleetError, match=r"^prediction tiny-predict: the cause$") as raised:
        predict(place, out)
    assert raised.value.exit_code == expected
    assert place.removed == [is_deleted]
    assert out.read_text() == "of an earlier command"


def test_a_file_that_is_gone_leaves_the_fleet_and_the_earlier_file(volume: Path, out: Path) -> None:
    (volume / "predictions.npz").unlink()
    place = platform(volume, [], DONE, chief=PREDICTED)
    with pytest.raises(LostPeerError, match=r"fleet tiny-predict has no file predictions\.npz"):
        predict(place, out)
    assert (place.removed, out.read_text()) == ([], "of an earlier command")


def test_a_file_that_cannot_be_written_is_refused(volume: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        predict(platform(volume, [], DONE), tmp_path / "no" / "out.npz")


def test_a_prediction_that_was_taken_down_says_how_it_continues(volume: Path, out: Path) -> None:
    with pytest.raises(TakenDownError, match="fleet tiny-predict was taken down; the same command continues"):
        predict(platform(volume, [], RUNS, []), out)


def test_a_prediction_of_other_data_is_not_attached_to(volume: Path, out: Path) -> None:
    with pytest.raises(UsageError, match="runs another version of the prediction"):
        predict(platform(volume, RUNS), out)


def test_a_run_of_that_name_is_not_attached_to(volume: Path, out: Path) -> None:
    with pytest.raises(UsageError, match="as a training run, expected another name for a prediction"):
        predict(platform(volume, [member("chief")]), out)


def of_run(place: ScriptedPlatform, run: Path, step: int | None = None, best: bool = False) -> PlatformModel:
    """The model of a run folder."""
    return find_model(place, str(run), step, best)


def newer(run: Path) -> None:
    """Writes a checkpoint of step 4."""
    with_checkpoint(run, 4, KERNEL + 1, BIAS)


def test_the_same_command_attaches_to_the_prediction_of_a_run_that_trains_on(
    volume: Path, out: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    first = platform(volume, [], DONE, chief=PREDICTED)
    predict_on(first, of_run(first, trained(run)), "data:set", out, 2)
    (request,) = first.applied
    newer(run)
    again = ScriptedPlatform(RUNS, RUNS, DONE, results=volume, logs={"chief": PREDICTED}, trained=request.job)
    again.driven = request.activity
    assert predict_on(again, of_run(again, run), "data:set", out, 2) == f"{out}: predictions of step 20"
    assert not again.applied
    with pytest.raises(UsageError, match="runs another version of the prediction"):
        predict_on(again_with(request, volume), of_run(again, run, step=4), "data:set", out, 2)
    shutil.rmtree(run / "checkpoints" / "00000000-g1")
    assert of_run(again, run).folder == str(run / "checkpoints" / "00000004-g1"), "the first one is gone"


def again_with(request: Request, volume: Path) -> ScriptedPlatform:
    """A platform on which the fleet of a request runs."""
    place = ScriptedPlatform(RUNS, results=volume, trained=request.job)
    place.driven = request.activity
    return place


def test_a_checkpoint_that_the_user_has_named_is_the_one_that_predicts(volume: Path, out: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    first = platform(volume, [], DONE, chief=PREDICTED)
    predict_on(first, of_run(first, trained(run)), "data:set", out, 2)
    newer(run)
    place = again_with(first.applied[0], volume)
    named = run / "checkpoints" / "00000004-g1"
    assert find_model(place, str(named), None, False).folder == str(named)
    other = tmp_path / "other"
    other.mkdir()
    assert of_run(place, trained(other)).folder == str(other / "checkpoints" / "00000000-g1"), "of another run"
