"""Lists the runs whose folders are in one folder, with status, step and metric of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.watched_metrics import main_metric
from psfleet.report.attempts import earlier_report
from psfleet.report.shown_job import job_of_run
from psfleet.run_folder import LOCAL, OWNER_FILE, Owner, RunFolder, is_locked, owner
from psfleet.service.logs import is_event, parse_line, tail

RUNNING, NO_REPORT = "running", "no report"


@dataclass(frozen=True)
class RunEntry:
    """One run, as `psfleet runs` lists it.

    Attributes:
        run: Its folder.
        job: The job's name.
        platform: Where it ran: local, compose, kubernetes or hosts; empty if it is not known.
        status: done, stopped, failed, running (on this machine), or "no report": none of its attempts has ended.
        exit_code: Of its newest attempt that ended; None: none has.
        step: Updates of the model; None: not known.
        target_step: Its final step; None: not known.
        metric: Name of `value`, see `main_metric`; empty: it was not evaluated.
        value: Of the newest evaluation; None: there is none.
        started: Start of its newest attempt in seconds since 1970.
        seconds: Duration of its newest attempt, so far if it runs.
    """

    run: str
    job: str
    platform: str
    status: str
    exit_code: int | None
    step: int | None
    target_step: int | None
    metric: str
    value: float | None
    started: float
    seconds: float


def runs_in(folder: Path) -> list[RunEntry]:
    """The runs in a folder, the newest first; a run's own folder is the one run.

    Raises:
        UsageError: There is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder, expected one that holds the folders of runs")
    found = {path: owner(path) for path in (folder, *sorted(folder.iterdir())) if path.is_dir()}
    entries = [_entry(path, belongs_to) for path, belongs_to in found.items() if belongs_to is not None]
    return sorted(entries, key=lambda each: each.started, reverse=True)


def is_running(path: Path, belongs_to: Owner) -> bool:
    """Whether a run of local processes has the folder at present."""
    return belongs_to.platform in ("", LOCAL) and is_locked(path)


def has_live_run(path: Path) -> bool:
    """Whether a run holds the lock of the run folder that a path names: the folder, or the one of its checkpoints."""
    return any(is_locked(each) for each in (path, path.resolve().parent))


def claimed_at(path: Path) -> float:
    """When the newest run claimed a folder, in seconds since 1970; 0: not known."""
    marker = path / OWNER_FILE
    return marker.stat().st_mtime if marker.exists() else 0.0


def log_entries(path: Path, role: str, index: int) -> list[dict[str, Any]]:
    """The newest log entries of a process of a local run; empty before it has logged any.

    Args:
        path: The run's folder.
        role: ps or worker; worker 0 is the chief.
    """
    try:
        lines = tail(RunFolder(path).log(role, index))
    except OSError:
        return []
    return [entry for line in lines if (entry := parse_line(line)) is not None]


def newest_entry(entries: Sequence[Mapping[str, Any]], event: str, field: str) -> Mapping[str, Any]:
    """The newest log entry of an event, empty if there is none."""
    return next((each for each in reversed(entries) if is_event(each, event, field)), {})


def _entry(path: Path, belongs_to: Owner) -> RunEntry:
    report = earlier_report(path)
    job = _job(path)
    metric, value = _metric(job, {} if report is None else report.eval)
    newest = report.attempts[-1] if report is not None and report.attempts else None
    ended = RunEntry(
        run=str(path),
        job=belongs_to.name,
        platform=belongs_to.platform,
        status=NO_REPORT if report is None else report.status,
        exit_code=None if report is None else report.exit_code,
        step=None if report is None else report.final_step,
        target_step=None if report is None else report.target_step,
        metric=metric,
        value=value,
        started=newest.started if newest is not None and newest.started else claimed_at(path),
        seconds=newest.seconds if newest is not None else 0.0 if report is None else report.seconds,
    )
    return _running(ended, path, job) if is_running(path, belongs_to) else ended


def _job(path: Path) -> Job | None:
    """The job of a run; None if it cannot be read."""
    try:
        return parse_job(job_of_run(path) or {})
    except BadJobError:
        return None


def _running(ended: RunEntry, path: Path, job: Job | None) -> RunEntry:
    """A run that trains: from the chief's log, and what that lacks from the attempts before."""
    entries = log_entries(path, "worker", 0)
    table, evaluated = newest_entry(entries, "fleet", "target"), newest_entry(entries, "evaluation", "secs")
    metric, value = _metric(job, evaluated["metrics"]) if evaluated.get("metrics") else (ended.metric, ended.value)
    started = claimed_at(path)
    return replace(
        ended,
        status=RUNNING,
        exit_code=None,
        step=table.get("step"),
        target_step=table.get("target"),
        metric=metric,
        value=value,
        started=started,
        seconds=max(0.0, time.time() - started) if started else 0.0,
    )


def _metric(job: Job | None, values: Mapping[str, float]) -> tuple[str, float | None]:
    """The metric that stands for a run, with its value; an empty name if there is none."""
    name = main_metric(job, values)
    return name, values.get(name)
