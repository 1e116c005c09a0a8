"""The run folder: the names of the files in it, and the lock that one run at a time holds on it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psfleet.checkpoint import committed
from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.report.schema import EventLog, History, Report

CHECKPOINTS = "checkpoints"
"""Folder of the run's checkpoints."""
STARTED = ".started"
"""Run-attempt marker, written by the chief: identifier and start time of the attempt."""
RECORDED = (Report.FILE_NAME, Report.DRAFT_NAME, "report.html", EventLog.FILE_NAME, STARTED, committed.FILE_NAME)
"""Files that the chief deletes when a new attempt starts."""
OF_ONE_START = (*RECORDED, "logs")
"""Files and folders that a resumed run replaces."""
OWN = (CHECKPOINTS, "tensorboard", History.FILE_NAME, *OF_ONE_START)
"""All files and folders of a run that `--fresh` deletes; other files in the folder are never changed."""


@dataclass(frozen=True)
class RunFolder:
    """Paths in the folder of one run."""

    path: Path

    @property
    def job(self) -> Path:
        """The resolved job, as JSON."""
        return self.path / "job.json"

    def log(self, role: str, index: int) -> Path:
        """The log of a process."""
        return self.path / "logs" / f"{role}-{index}.log"


@contextmanager
def claimed(path: Path, job: Job, fresh: bool) -> Iterator[RunFolder]:
    """Context manager that locks a run folder, deletes the files of earlier runs, and writes the resolved job.

    Args:
        path: The folder; created if it is missing.
        job: The resolved job.
        fresh: Whether checkpoints and history of earlier runs are deleted too.

    Raises:
        UsageError: The folder cannot be written, or another run has locked it.
    """
    folder = RunFolder(path.resolve())
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = (folder.path / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror or error}, expected a folder that can be written") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"--out {path}: another run is using it, expected another folder") from error
        try:
            clear(folder.path, OWN if fresh else OF_ONE_START)
            (folder.path / "logs").mkdir(exist_ok=True)
            folder.job.write_text(job.model_dump_json(indent=2), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--out {path}: {error.strerror or error}, expected a folder that can be written"
            ) from error
        yield folder


def clear(folder: Path, names: tuple[str, ...]) -> None:
    """Deletes the named files and folders in a folder, if they exist."""
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
