"""Runs a fleet as processes on this machine and watches it to its end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.checkpoint.location import require_not_refused
from psfleet.checkpoint.stored_run import delete_stored
from psfleet.job import function_program
from psfleet.job.job import Job, load_job, parse_job
from psfleet.launch import watcher
from psfleet.launch.results import Start, unreported, with_failure
from psfleet.platforms.local.finished import finished_report, require_steps_left
from psfleet.platforms.local.platform import Local
from psfleet.platforms.standing.placing import certificates_of, on_fleet
from psfleet.report import html
from psfleet.report.attempts import earlier_report, with_end
from psfleet.report.hold import AT_START, HoldRecord
from psfleet.report.progress import Listener, callers_console, finished_entry, progress, starting_entry
from psfleet.report.schema import Report
from psfleet.run_folder import RunFolder, claimed, default_folder
from psfleet.service import process_environment
from psfleet.service.signals import collected_signals


def train(
    job: Job | Path | str | Mapping[str, Any],
    *,
    program: Callable[..., Any] | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    overrides: Sequence[str] = (),
    program_folder: Path | str | None = None,
    listener: Listener | None = None,
    fleet: str | None = None,
    paused: bool = False,
) -> Report:
    """Trains a job on processes of this machine, and waits for its end.

    Args:
        job: A job, its content as a mapping, or the path of a job file.
        program: The function that returns the training program, instead of `job.program`: of a module, or defined in a
            notebook or script, with all that it uses there.
        out: The run's folder; `runs/<name>` by default. If it has checkpoints, training resumes from the newest.
        fresh: Whether the results of an earlier run in `out` are deleted first.
        overrides: `key=value` texts that change the job, as `--set` of `psfleet train`.
        program_folder: Searched first for the program's module; the job file's folder by default, or else the current
            one.
        listener: Called with each log entry of the chief: its `event` is progress, evaluation, checkpoint, … By default
            the progress is shown: in a Jupyter notebook, or else on stderr as `psfleet train` does on stdout.
        fleet: Name of the standing fleet whose ps are trained on, all of them; None: the run starts its own.
        paused: Whether the run is held at the step that it starts from: see `psfleet.start`.

    Returns:
        The report, of a failed run too: see its `status`, `exit_code` and `error`.

    Raises:
        UsageError: The job file, the program or the folder cannot be used, TensorFlow is not installed, or the
            standing fleet is down.
        BadJobError: The job is not valid, ends before the newest checkpoint in `out`, or may not use its store.
    """
    folder, files = Path(program_folder) if program_folder is not None else _folder_of(job), {}
    if program is not None:
        name, own_folder = function_program.reference(program)
        folder, files = own_folder or folder, {} if own_folder else function_program.contents(program)
        overrides = [*overrides, f"program={name}"]
    resolved = _resolved(job, overrides, fleet)
    return train_resolved(
        resolved, folder, out=out, program_files=files, fresh=fresh, listener=listener, paused=paused,
        certificates=None if fleet is None else certificates_of(fleet),
    )  # fmt: skip


def train_resolved(
    job: Job,
    folder: Path,
    *,
    out: Path | str | None,
    program_files: Mapping[str, bytes],
    fresh: bool,
    listener: Listener | None,
    paused: bool,
    certificates: Path | None = None,
) -> Report:
    """As `train`, of a job that is resolved.

    Args:
        folder: The program's, which is searched first.
        program_files: Those of a program that is stored in the run's folder; see `function_program`. Empty: there are
            none.
        certificates: Of the standing fleet that is trained on, with a folder for each role; None: there is no TLS.
    """
    process_environment.require_tensorflow()
    require_not_refused(job)
    path = Path(out) if out is not None else default_folder(job.name)
    done = finished_report(path, job, folder) if not fresh and not program_files else None
    if done is not None:
        with _listening(listener, job) as listens:
            listens(finished_entry(done))
        return done
    if not fresh:
        require_steps_left(path, job)
    with claimed(path, job, fresh) as run_folder:
        _prepare(job, run_folder, fresh, paused)
        if program_files:
            folder = function_program.write(program_files, run_folder.program)
        with _listening(listener, job) as listens:
            return _run(job, run_folder, folder.resolve(), listens, certificates)


def _prepare(job: Job, folder: RunFolder, fresh: bool, paused: bool) -> None:
    """Deletes the earlier checkpoints in a store for a fresh run, and has one that is paused held at its start."""
    if fresh:
        delete_stored(job, folder.path)
    if paused:
        HoldRecord(AT_START).write(folder.path)


def _folder_of(job: Job | Path | str | Mapping[str, Any]) -> Path:
    """The folder of a job file; the current one if the job is no file."""
    return Path(job).parent if isinstance(job, str | Path) else Path()


def _resolved(job: Job | Path | str | Mapping[str, Any], overrides: Sequence[str], fleet: str | None) -> Job:
    if isinstance(job, str | Path):
        found = load_job(Path(job), overrides)
    elif not isinstance(job, Job):
        found = parse_job(job, overrides=overrides)
    else:
        found = parse_job(job.model_dump(mode="json"), overrides=overrides) if overrides else job
    return found if fleet is None else on_fleet(found, fleet)


@contextmanager
def _listening(listener: Listener | None, job: Job) -> Iterator[Listener]:
    """The caller's listener, or else one that shows the progress in a notebook or on stderr."""
    if listener is not None:
        yield listener
        return
    with progress(callers_console(), job) as shown:
        yield shown


def _run(
    job: Job, folder: RunFolder, program_folder: Path, listener: Listener, certificates: Path | None = None
) -> Report:
    """Runs a fleet to its end; no process outlives the call.

    Returns:
        The chief's report; if it wrote none, or failed because of another process, one by the launcher.
    """
    signals: list[int] = []
    platform = Local(job, folder, program_folder, signals, certificates)
    start = Start.now(platform.run, folder, job)
    with collected_signals(signals):
        try:
            listener(starting_entry(job))
            platform.start()
            gone = watcher.FleetWatcher(platform, job, listener).run()
            # Before the remaining processes are killed: that would look like a failure of theirs.
            members = platform.members(job.name)
        finally:
            platform.remove(job.name, results=False)
    chief_report = earlier_report(folder.path)
    if chief_report is not None and chief_report.run != platform.run:
        chief_report = None
    report = chief_report or unreported(job, folder, members, gone, start)
    if not signals:
        report = with_failure(report, gone)
    elif chief_report is None:
        code, error = errors.SIGNAL_BASE + signals[0], f"stopped by {signal.Signals(signals[0]).name}"
        report = with_end(report, "stopped", code, error)
    return (report if report is chief_report else html.publish_or_warn(report, folder.path)).located(folder.path)
