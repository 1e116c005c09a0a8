"""`psfleet predict` refuses what it cannot use before any process starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint
from support.predicted_share import write_share
from support.scripted_platform import ScriptedPlatform, ended, log, member
from support.scripted_worker import ScriptedWorker

from psfleet.checkpoint import store
from psfleet.checkpoint.manifest import read_manifest
from psfleet.cli import predict
from psfleet.job.prediction_files import Request
from psfleet.launch import watcher
from psfleet.predictions import driver
from psfleet.service import settings
from psfleet.sweep.database import DATABASE, opened, optuna_module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "no_colon", "--out", "o.npz"], "--data no_colon: expected MODULE:CALLABLE"),
        (["--data", "module:", "--out", "o.npz"], "--data module:: expected MODULE:CALLABLE"),
        (["--data", "m:c", "--out", "o.csv"], "--out o.csv: expected a name that ends in .npz or .parquet"),
        (["--data", "m:c", "--out", "o.npz", "--step", "7"], "--step 7: . has no checkpoint of that step"),
        (["--data", "m:c", "--out", "o.npz", "--on", "slurm"], "platform 'slurm': expected one of compose, kubernetes"),
        (["--data", "no_colon", "--out", "o.npz", "--on", "compose"], "--data no_colon: expected MODULE:CALLABLE"),
        (["--data", "m:c", "--out", "o.csv", "--on", "kubernetes"], "--out o.csv: expected a name that ends in .npz"),
        (["--data", "m:c", "--out", "o.npz", "--best"], "--best: the job of . has no checkpoint.best"),
    ],
)
def test_options_that_fit_no_run_are_refused(
    psfleet: Psfleet, tmp_path: Path, options: list[str], message: str
) -> None:
    trained(tmp_path)
    said = psfleet("predict", ".", *options)
    assert (said.code, said.err.count("\n")) == (64, 1), said.err
    assert message in said.err


def test_a_folder_without_a_checkpoint_has_exit_code_65(psfleet: Psfleet) -> None:
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz")
    assert (said.code, said.err.count("\n")) == (65, 1), said.err
    assert "no checkpoint there" in said.err


def test_a_study_without_a_complete_trial_is_refused(psfleet: Psfleet, tmp_path: Path) -> None:
    storage = opened(tmp_path / DATABASE)
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz")
    assert (said.code, said.err) == (64, "psfleet: . has 0 studies, expected one\n")
    optuna_module().create_study(storage=storage, study_name="digits")
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz")
    assert (said.code, said.err.count("\n")) == (64, 1), said.err
    assert "the best trial has no weights, expected a study with a complete trial" in said.err
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz", "--best")
    assert "whose best trial is used, expected neither --step nor --best" in said.err


def test_the_newest_checkpoint_may_be_deleted_before_the_workers_start(
    psfleet: Psfleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def workers(*arguments: object) -> Iterator[list[ScriptedWorker]]:
        folder = arguments[-1]
        assert isinstance(folder, Path)
        with_checkpoint(tmp_path, 4, KERNEL, BIAS)
        store.prune(tmp_path / "checkpoints", 1)
        named = Request.read(folder).checkpoint
        assert named is not None
        store.verify(read_manifest(Path(named)))
        write_share(folder, 0, 1)
        yield [ScriptedWorker(0)]

    trained(tmp_path)
    monkeypatch.setattr(driver, "process_workers", workers)
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz", "--workers", "1")
    assert said.code == 0, said.err
    assert "predictions float32 [7] of step 0, by 1 worker" in said.out


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedPlatform:
    """On which a prediction ends well."""
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.1)
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "predictions.npz").write_bytes(b"all")
    lines = log({"event": "done", "message": "predictions of step 0"})
    looks = [[], [member("chief", activity="prediction")], [ended("chief", activity="prediction")]]
    found = ScriptedPlatform(*looks, logs={"chief": lines}, results=tmp_path / "volume")
    monkeypatch.setattr(predict, "platform", lambda name: found)
    return found


def test_containers_predict_with_as_many_workers_as_the_job_has(
    psfleet: Psfleet, platform: ScriptedPlatform, tmp_path: Path
) -> None:
    trained(tmp_path)
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz", "--on", "compose")
    assert (said.code, said.out.splitlines()[-1]) == (0, "o.npz: predictions of step 0"), said.err
    assert (tmp_path / "o.npz").read_bytes() == b"all"
    (request,) = platform.applied
    assert request.job.fleet.processes == 1 + 1


def test_the_hint_after_ctrl_c_repeats_the_command(
    psfleet: Psfleet, platform: ScriptedPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    trained(tmp_path)
    monkeypatch.setattr("psfleet.driver.on_platform.FleetWatcher.run", interrupt)
    options = "--data m:c --out o.npz --workers 2 --step 0 --on compose"
    said = psfleet("predict", ".", *options.split())
    assert said.code == 130
    text = " ".join((said.out + said.err).split())
    assert f"detached; the prediction continues. `psfleet predict . {options}` reattaches to it" in text
    assert "`psfleet down net-predict --on compose` ends it." in text
