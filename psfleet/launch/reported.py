"""The report of a run that a command line names: by its folder, by its job, or by the store of its checkpoints."""

from __future__ import annotations

from pathlib import Path

from psfleet.checkpoint.location import Folder, parse, recorded_root
from psfleet.errors import UsageError
from psfleet.job.job import load_job, name_of
from psfleet.launch.runs import runs_in
from psfleet.report.schema import Report
from psfleet.run_folder import owner


def run_named(text: str, runs: Path) -> Folder:
    """The run folder of a run, or the store with the copy of its report.

    A job has the newest run with a report in `runs`; without one, its store, or the folder of its name.

    Args:
        text: The URL of a store, a run folder, a job file, or the name of a job or of a folder in `runs`.
        runs: Has the run folders; may be missing.

    Raises:
        UsageError: It is none of these.
        BadJobError: The job file is invalid.
    """
    if "://" in text:
        return parse(text)
    path = Path(text)
    if path.is_dir():
        return _with_report(path)
    if path.is_file() and path.name in (Report.FILE_NAME, "report.html"):
        raise UsageError(f"{path}: is a report, expected its folder, {path.parent}")
    name = name_of(text)
    found = [Path(each.run) for each in runs_in(runs) if each.job == name] if runs.is_dir() else []
    reported = [folder for folder in found if (folder / Report.FILE_NAME).exists()]
    if reported:
        return reported[0]
    store = load_job(path).checkpoint.store if path.is_file() else None
    if store is not None:
        return parse(store)
    if found or (runs / name).is_dir():
        return _with_report(found[0] if found else runs / name)
    raise UsageError(f"{text}: {runs} has no run of job {name}, expected a job, a run folder or the URL of a store")


def read(run: Folder) -> Report:
    """The report of a run.

    Raises:
        UsageError: There is none, or it cannot be read.
        BadJobError: It is not a report of this version.
        StoreError: The store does not answer.
    """
    if isinstance(run, Path) and not (run / Report.FILE_NAME).exists():
        if owner(run) is not None:
            raise UsageError(f"{run}: no report yet, no attempt of the run has ended")
        raise UsageError(
            f"{run}: no {Report.FILE_NAME}, expected the folder of a run that has ended, or the name of a job"
        )
    return Report.read(str(run))


def _with_report(folder: Path) -> Folder:
    """The folder, or the store of its checkpoints if only that can have the report."""
    return folder if (folder / Report.FILE_NAME).exists() else recorded_root(folder).parent
