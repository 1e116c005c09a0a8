"""Records a run in MLflow: the job as parameters, progress and evaluations as metrics, the report as artifacts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from mlflow.entities import LifecycleStage, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from psfleet.callbacks.interface import Callback, RunInfo
from psfleet.job.differences import flattened
from psfleet.report.schema import Report

RUN_ID = "mlflow_run_id"
"""File in the callback's folder."""
MAX_PARAM_CHARS = 500
MAX_PARAMS = 100
"""Of one request (mlflow/utils/validation.py)."""
NO_SUCH_RUN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""Errors of a server that has no run of this id, or cannot have one."""
REFUSED = re.compile(r"[^/\w.\- :]")
"""What names may not have (mlflow/utils/validation.py)."""
RETRY_SECS = 30.0
"""Least time until a run that could not be made is tried again."""
STATUS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflowTracker(Callback):
    """A run in MLflow for each run folder; a resumed run continues it.

    Args of the constructor:
        tracking_uri: Of the server; default: the environment variable MLFLOW_TRACKING_URI.
        experiment: Its name, made if it is missing; default: the job's name.
        every_steps: Number of steps for each record of training metrics.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None, every_steps: int = 10) -> None:
        self.every_steps = every_steps
        self._client = MlflowClient(tracking_uri)
        self._experiment = experiment
        self._id = ""
        self._is_started = False
        self._run: RunInfo | None = None
        self._tried = 0.0

    def on_start(self, run: RunInfo) -> None:
        """Makes the run, or finds that of the run folder, and records the job's fields; see `_has_run`."""
        self._run = run
        try:
            self._start(run)
        finally:
            self._tried = time.monotonic()

    def _has_run(self, pause_secs: float = RETRY_SECS) -> bool:
        """Whether there is a run with the job; what could not be recorded is tried again, after this pause at least."""
        if not self._is_started and self._run is not None and time.monotonic() - self._tried >= pause_secs:
            self.on_start(self._run)
        return self._is_started

    def _start(self, run: RunInfo) -> None:
        marker = run.state / RUN_ID
        self._id = self._known(marker) or self._make(run)
        marker.write_text(self._id)
        self._client.update_run(self._id, status="RUNNING")
        known = self._client.get_run(self._id).data.params
        job = flattened(run.job)
        names = accepted(job)
        fields = {names[key]: str(value)[:MAX_PARAM_CHARS] for key, value in job.items()}
        new = [Param(key, value) for key, value in fields.items() if key not in known]
        for first in range(0, len(new), MAX_PARAMS):
            self._client.log_batch(self._id, params=new[first : first + MAX_PARAMS])
        # A parameter cannot change; what a resumed run has changed is a tag.
        for key, value in fields.items():
            if known.get(key, value) != value:
                self._client.set_tag(self._id, f"changed at step {run.step}: {key}", value)
        self._is_started = True

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records `train/loss` and the like."""
        self._record(step, {f"train/{name}": value for name, value in metrics.items()})

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records `evaluate/accuracy` and the like."""
        self._record(step, {f"evaluate/{name}": value for name, value in metrics.items()})

    def on_checkpoint(self, step: int, folder: Path | str) -> None:
        """Records the path or the URL of the newest checkpoint."""
        if self._has_run():
            self._client.set_tag(self._id, "checkpoint", str(folder))

    def on_end(self, report: Report) -> None:
        """Stores the report, and ends the run with its status."""
        if self._run is None or not self._has_run(pause_secs=0.0):
            return
        for name in (Report.FILE_NAME, "report.html"):
            if (self._run.folder / name).exists():
                self._client.log_artifact(self._id, str(self._run.folder / name))
        self._client.set_terminated(self._id, STATUS[report.status])

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._has_run():
            return
        now, names = int(time.time() * 1000), accepted(metrics)
        found = [Metric(names[name], float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, found)

    def _known(self, marker: Path) -> str:
        """The run of the run folder; empty if there is none, or if the server has lost it or it was deleted there.

        Raises:
            MlflowException: The server does not answer, or with another error: it may have the run.
        """
        if not marker.exists():
            return ""
        try:
            info = self._client.get_run(marker.read_text()).info
        except MlflowException as error:
            if error.error_code not in NO_SUCH_RUN:
                raise
            return ""
        return str(info.run_id) if info.lifecycle_stage == LifecycleStage.ACTIVE else ""

    def _make(self, run: RunInfo) -> str:
        experiment = self._experiment_id(self._experiment or run.name)
        return str(self._client.create_run(experiment, run_name=run.run).info.run_id)

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                # Another run may have made it meanwhile.
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)


def accepted(names: Iterable[str]) -> dict[str, str]:
    """By name, one that MLflow accepts: other characters become `_`; of several equal ones the later get numbers."""
    given = sorted(names)
    found = {name: name for name in given if not REFUSED.search(name)}
    taken = set(found)
    for name in given:
        if name in found:
            continue
        found[name] = first = REFUSED.sub("_", name)
        number = 1
        while found[name] in taken:
            number += 1
            found[name] = f"{first}_{number}"
        taken.add(found[name])
    return found
