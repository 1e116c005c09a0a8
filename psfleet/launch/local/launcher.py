"""Runs a fleet as processes on this machine and watches it to its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.errors import UsageError
from psfleet.job.job import Job, load_job, parse_job
from psfleet.launch import watcher
from psfleet.launch.local.platform import Local
from psfleet.launch.results import unreported, with_failure
from psfleet.report import html
from psfleet.report.progress import Listener, starting_entry
from psfleet.report.schema import Report
from psfleet.run_folder import RunFolder, claimed, default_folder
from psfleet.service import settings
from psfleet.service.cpu import num_cores, share_cores


def train(
    job: Job | Path | str | Mapping[str, Any],
    *,
    out: Path | str | None = None,
    fresh: bool = False,
    overrides: tuple[str, ...] = (),
    program_folder: Path | str | None = None,
    listener: Listener | None = None,
) -> Report:
    """Trains a job on processes of this machine, and waits for its end.

    Args:
        job: A job, its content as a mapping, or the path of a job file.
        out: The run's folder; `runs/<name>` by default. If it has checkpoints, training resumes from the newest.
        fresh: Whether the results of an earlier run in `out` are deleted first.
        overrides: `key=value` texts that change the job file.
        program_folder: Searched first for the program's module; the job file's folder by default.
        listener: Called with each log entry of the chief: its `event` is progress, evaluation, checkpoint, …

    Returns:
        The report, of a failed run too: see its `status`, `exit_code` and `error`.

    Raises:
        UsageError: The job file or the folder cannot be used, or TensorFlow is not installed.
        BadJobError: The job is not valid.
    """
    folder = Path(program_folder) if program_folder is not None else Path()
    if isinstance(job, str | Path):
        path = Path(job)
        job = load_job(path, overrides)
        folder = path.parent if program_folder is None else folder
    elif overrides:
        raise UsageError("overrides go with the path of a job file")
    elif not isinstance(job, Job):
        job = parse_job(job)
    job = share_cores(job, num_cores(), job.fleet.replicas)
    settings.require_tensorflow()
    with claimed(Path(out) if out is not None else default_folder(job.name), job, fresh) as run_folder:
        return _run(job, run_folder, folder.resolve(), listener or (lambda entry: None))


def _run(job: Job, folder: RunFolder, program_folder: Path, listener: Listener) -> Report:
    """Runs a fleet to its end; no process outlives the call.

    Returns:
        The chief's report; if it wrote none, or failed because of another process, one by the launcher.
    """
    signals: list[int] = []
    platform = Local(job, folder, program_folder, signals)
    with _signals_into(signals):
        try:
            listener(starting_entry(job))
            platform.start()
            gone = watcher.FleetWatcher(platform, job, listener).run()
            # Before the remaining processes are killed: that would look like a failure of theirs.
            members = platform.members(job.name)
        finally:
            platform.remove(job.name, results=False)
    chief_report = Report.read(folder.path) if (folder.path / Report.FILE_NAME).exists() else None
    report = chief_report or unreported(job, folder, members, gone, platform.run)
    if not signals:
        report = with_failure(report, gone)
    elif chief_report is None:
        code, error = errors.SIGNAL_BASE + signals[0], f"stopped by {signal.Signals(signals[0]).name}"
        report = report.model_copy(update={"status": "stopped", "exit_code": code, "error": error})
    if report is not chief_report:
        html.publish(report, folder.path)
    return report


@contextmanager
def _signals_into(received: list[int]) -> Iterator[None]:
    """Collects SIGINT and SIGTERM while the block runs; only Python's main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: received.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
