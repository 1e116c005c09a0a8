"""`psfleet predict --on compose`: the driver of a prediction and its workers as containers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml
from support.compose_fleet import END_SECS, START_SECS, inspected
from support.compose_lab import commanded
from support.compose_prediction import WORKERS, ComposePrediction, arrays, compose_prediction, compose_run
from support.compose_study import compose_study
from support.images import docker
from support.programs import predicted_data
from support.s3_server import S3Server

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.manifests.compose.render import project

pytestmark = pytest.mark.timeout(600)


def wait_for_readers(seen: ComposePrediction) -> None:
    """Until each worker reads the data set."""
    seen.wait_for(lambda: all(map(seen.is_reading, WORKERS)), START_SECS, "the workers to read")


@pytest.mark.core
def test_the_file_is_that_of_processes_although_a_worker_is_killed(tmp_path: Path) -> None:
    with compose_prediction(tmp_path / "run") as seen:
        seen.hold()
        seen.predict()
        wait_for_readers(seen)
        seen.kill_inside("worker-0")
        seen.wait_for(lambda: "worker 0 died" in seen.screen.read_text(), START_SECS, "another process of the worker")
        seen.release()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        assert arrays(seen.file) == seen.predicted_here()
        assert f"{seen.file}: predictions float32 [10, 3] of step 0, by 2 workers" in seen.screen.read_text()
        assert "is started again; its share is predicted again" in seen.screen.read_text()
        assert seen.left() == {}


@pytest.mark.extended
def test_a_killed_driver_continues_and_the_same_command_reattaches(tmp_path: Path) -> None:
    with compose_prediction(tmp_path / "run") as seen:
        seen.hold()
        seen.predict()
        wait_for_readers(seen)
        seen.kill_inside("chief")
        seen.wait_for(lambda: len(seen.entries("listening")) == 2, START_SECS, "another process of the driver")
        seen.leave()
        assert "detached; the prediction continues" in seen.screen.read_text()
        assert not seen.file.exists()
        seen.predict()
        seen.release()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        assert arrays(seen.file) == seen.predicted_here()
        assert seen.left() == {}


@pytest.mark.extended
def test_data_that_fail_end_the_prediction_with_their_reason(tmp_path: Path) -> None:
    with compose_prediction(tmp_path / "run") as seen:
        seen.predict("failing")
        assert seen.end(START_SECS + END_SECS) == 70, seen.tails()
        assert "reading the data set raised ValueError: no more rows" in seen.screen.read_text().splitlines()[-1]
        assert not seen.file.exists()
        assert seen.left() == {}


@pytest.mark.extended
def test_a_format_that_the_image_cannot_write_is_refused_in_one_line(tmp_path: Path) -> None:
    with compose_prediction(tmp_path / "run") as seen:
        out = ("--out", str(seen.folder / "out.parquet"), "--on", "compose")
        said = seen.run("predict", str(seen.folder), "--data", "predicted_data:labelled", *out, code=64)
        text = "prediction net-predict: --out predictions.parquet: pyarrow is not installed, expected container.worker_"
        assert text in " ".join(said.splitlines()[-1].split())
        assert "every member to end" not in said, "workers know that nothing is left to do"
        assert seen.left() == {}


@pytest.mark.extended
def test_the_newest_checkpoint_in_the_results_of_a_run_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compose_run(tmp_path / "run") as seen:
        seen.up()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        data, there, here = ("--data", "predicted_data:labelled"), seen.folder / "there.npz", seen.folder / "here.npz"
        said = commanded("predict", str(seen.job), *data, "--out", str(there), "--on", "compose")
        assert "predictions float32 [10, 3] of step 3, by 2 workers" in said.stdout
        # The folder of the program in its container is not on this machine.
        refused = seen.run("predict", str(seen.out), *data, "--out", str(here), "--on", "compose", code=64)
        assert "the folder of its program, /program, is not on this machine" in refused
        monkeypatch.setenv("PYTHONPATH", str(seen.folder), prepend=os.pathsep)
        commanded("predict", str(seen.out), *data, "--out", str(here), "--workers", "2")
        assert arrays(there) == arrays(here)
        assert set(seen.left()) == {"volumes"}, "the results of the run stay"
        assert inspected("ps", "--all", project(f"{seen.name}-predict")) == {}


@pytest.mark.extended
def test_the_best_trial_in_the_results_of_a_study_predicts(tmp_path: Path) -> None:
    with compose_study(tmp_path / "study", predicts=True) as seen:
        seen.sweep()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        shutil.copy(predicted_data.__file__, seen.folder)
        study, data = str(seen.folder / "study.yaml"), ("--data", "predicted_data:numbers")
        there, here = seen.folder / "there.npz", seen.folder / "here.npz"
        commanded("predict", study, *data, "--out", str(there), "--on", "compose")
        commanded("predict", str(seen.out), *data, "--out", str(here), "--workers", "2")
        assert arrays(there) == arrays(here)
        assert set(seen.left()) == {"volumes"}, "the results of the study stay"


@pytest.mark.extended
def test_the_driver_alone_reads_a_checkpoint_in_a_store(tmp_path: Path, s3: S3Server) -> None:
    store = StoreFolder("s3://fleet/run")
    with compose_prediction(tmp_path / "run") as seen:
        (checkpoint,) = (seen.folder / "checkpoints").iterdir()
        for path in checkpoint.iterdir():
            (store / "checkpoints" / checkpoint.name / path.name).write_bytes(path.read_bytes())
        shutil.rmtree(seen.folder / "checkpoints")
        job = {"name": "net", "program": "versioned_program:keras_program", "fleet": {"workers": 2}}
        job |= {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "train": {"steps": 1, "batch_size": 1}}
        job |= {"tls": True, "checkpoint": {"store": str(store)}}
        seen.job.write_text(yaml.safe_dump(job))
        seen.hold()
        seen.predict(source=str(seen.job))
        wait_for_readers(seen)
        secret = os.environ["AWS_SECRET_ACCESS_KEY"]
        knowing = {name for name in (*WORKERS, "chief") if secret in described(seen, name)}
        assert knowing == {"chief"}
        seen.release()
        assert seen.end(START_SECS + END_SECS) == 0, seen.tails()
        assert "of step 0, by 2 workers" in seen.screen.read_text()
        assert arrays(seen.file) == seen.predicted_here(str(store))
        assert seen.left() == {}


def described(seen: ComposePrediction, service: str) -> str:
    """What the engine says of a container."""
    return docker("inspect", seen.container(service)).stdout
