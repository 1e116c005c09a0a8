"""A run in MLflow, with its file store: what is recorded, and how a resumed run continues it.

MLflow is imported in the tests: the processes of pytest that run other files need not spend a second on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.report_samples import DONE

from psfleet.callbacks.interface import RunInfo

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from psfleet.callbacks.mlflow_tracker import MLflowTracker

JOB = {"name": "digits", "train": {"steps": 100, "batch_size": 8}, "options": {}, "tls": False}


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def info(tmp_path: Path, job: Mapping[str, Any] = JOB, step: int = 0) -> RunInfo:
    (tmp_path / "state").mkdir(exist_ok=True)
    return RunInfo("digits", "digits-1", job, tmp_path, tmp_path / "state", step)


def client_of(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def tracker_of(uri: str, **options: Any) -> MLflowTracker:
    from psfleet.callbacks.mlflow_tracker import MLflowTracker

    return MLflowTracker(tracking_uri=uri, **options)


def runs(uri: str, experiment: str = "digits") -> list[Any]:
    client = client_of(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id]))


def test_the_job_its_progress_and_its_report_are_recorded(tmp_path: Path, uri: str) -> None:
    tracker = tracker_of(uri)
    tracker.on_start(info(tmp_path))
    tracker.on_step(10, {"loss": 0.5, "step_secs": 0.1})
    tracker.on_step(20, {"loss": 0.25, "step_secs": 0.1})
    tracker.on_evaluate(20, {"accuracy": 0.9})
    tracker.on_checkpoint(20, tmp_path / "checkpoints" / "00000020-g1")
    DONE.write(tmp_path)
    tracker.on_end(DONE)
    [run] = runs(uri)
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "name": "digits", "train.steps": "100", "train.batch_size": "8", "options": "{}", "tls": "False"
    }  # fmt: skip
    assert run.data.metrics == {"train/loss": 0.25, "train/step_secs": 0.1, "evaluate/accuracy": 0.9}
    history = client_of(uri).get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(10, 0.5), (20, 0.25)]
    assert run.data.tags["checkpoint"].endswith("00000020-g1")
    assert [file.path for file in client_of(uri).list_artifacts(run.info.run_id)] == ["report.json"]


def test_a_resumed_run_continues_the_same_one_and_names_what_has_changed(tmp_path: Path, uri: str) -> None:
    first = tracker_of(uri)
    first.on_start(info(tmp_path))
    first.on_end(DONE.model_copy(update={"status": "stopped", "exit_code": 130, "error": "stopped by SIGINT"}))
    assert [run.info.status for run in runs(uri)] == ["KILLED"]
    longer = {**JOB, "train": {"steps": 200, "batch_size": 8}}
    second = tracker_of(uri)
    second.on_start(info(tmp_path, longer, step=100))
    [run] = runs(uri)
    assert run.info.status == "RUNNING"
    assert run.data.params["train.steps"] == "100"
    assert run.data.tags["changed at step 100: train.steps"] == "200"


def test_a_run_that_the_server_has_lost_is_made_again(tmp_path: Path, uri: str) -> None:
    tracker_of(uri).on_start(info(tmp_path))
    other = (tmp_path / "other").as_uri()
    tracker_of(other, experiment="mine").on_start(info(tmp_path))
    assert len(runs(other, "mine")) == 1


def test_a_server_that_fails_gets_no_second_run(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    tracker_of(uri).on_start(info(tmp_path))
    marker = (tmp_path / "state" / "mlflow_run_id").read_text()

    def overloaded(*_: Any) -> Any:
        raise MlflowException("overloaded")

    again = tracker_of(uri)
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "get_run", overloaded)
        with pytest.raises(MlflowException, match="overloaded"):
            again.on_start(info(tmp_path))
    assert [run.info.run_id for run in runs(uri)] == [marker]


def test_a_run_that_was_deleted_in_mlflow_is_made_again(tmp_path: Path, uri: str) -> None:
    tracker_of(uri).on_start(info(tmp_path))
    client_of(uri).delete_run(runs(uri)[0].info.run_id)
    again = tracker_of(uri)
    again.on_start(info(tmp_path))
    again.on_step(10, {"loss": 0.5})
    [run] = runs(uri)
    assert run.data.metrics == {"train/loss": 0.5}


def test_two_runs_that_make_their_experiment_at_once_share_it(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    find = MlflowClient.get_experiment_by_name

    def late(client: MlflowClient, name: str) -> Any:
        found = find(client, name)
        if found is None:
            client_of(uri).create_experiment(name)
        return found

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", late)
    tracker_of(uri).on_start(info(tmp_path))
    assert len(runs(uri)) == 1


def test_names_that_mlflow_refuses_are_changed_and_stay_different(tmp_path: Path, uri: str) -> None:
    options = {"k@1": 1, "k_1": 2, "k+1": 3, "Stufe 1/größe": 4}
    job = {**JOB, "options": options}
    tracker = tracker_of(uri)
    tracker.on_start(info(tmp_path, job))
    tracker.on_step(10, {"loss": 0.5, "loss@5": 0.25})
    tracker.on_evaluate(10, {"recall@10": 0.9, "recall_10": 0.8, "recall#10": 0.7, "precision@10": 0.6})
    again = tracker_of(uri)
    again.on_start(info(tmp_path, {**job, "options": {**options, "k@1": 5}}, step=20))
    [run] = runs(uri)
    found = {name: value for name, value in run.data.params.items() if name.startswith("options")}
    assert found == {"options.k_1": "2", "options.k_1_2": "3", "options.k_1_3": "1", "options.Stufe 1/größe": "4"}
    assert run.data.metrics == {
        "train/loss": 0.5, "train/loss_5": 0.25, "evaluate/precision_10": 0.6,
        "evaluate/recall_10": 0.8, "evaluate/recall_10_2": 0.7, "evaluate/recall_10_3": 0.9,
    }  # fmt: skip
    assert run.data.tags["changed at step 20: options.k_1_3"] == "5"


def test_a_run_is_made_once_a_server_that_was_down_at_the_start_is_there(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    from psfleet.callbacks import mlflow_tracker

    now, asked = 100.0, 0
    monkeypatch.setattr(mlflow_tracker, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))

    def unreachable(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        raise MlflowException("unreachable")

    tracker = tracker_of(uri)
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "get_experiment_by_name", unreachable)
        with pytest.raises(MlflowException, match="unreachable"):
            tracker.on_start(info(tmp_path))
        now += mlflow_tracker.RETRY_SECS - 1
        tracker.on_step(10, {"loss": 0.5})
        tracker.on_checkpoint(10, tmp_path)
        assert asked == 1
        now += 1
        with pytest.raises(MlflowException, match="unreachable"):
            tracker.on_evaluate(10, {"loss": 0.5})
        assert asked == 2
    tracker.on_step(20, {"loss": 0.4})
    now += mlflow_tracker.RETRY_SECS
    tracker.on_step(30, {"loss": 0.3})
    tracker.on_step(40, {"loss": 0.2})
    tracker.on_end(DONE)
    [run] = runs(uri)
    assert (run.info.status, run.data.params["train.steps"]) == ("FINISHED", "100")
    history = client_of(uri).get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in history] == [30, 40]


@pytest.mark.parametrize("failing", ["create_run", "update_run", "log_batch"])
def test_a_run_that_ends_soon_after_its_start_failed_is_recorded_at_its_end_once(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    def unreachable(*_: Any, **__: Any) -> Any:
        raise MlflowException("unreachable")

    tracker = tracker_of(uri)
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, failing, unreachable)
        with pytest.raises(MlflowException, match="unreachable"):
            tracker.on_start(info(tmp_path))
    DONE.write(tmp_path)
    tracker.on_end(DONE)
    [run] = runs(uri)
    assert (run.info.status, run.data.params["train.steps"]) == ("FINISHED", "100")
    assert [file.path for file in client_of(uri).list_artifacts(run.info.run_id)] == ["report.json"]
