"""The run folder: claimed for one run at a time, cleared for a fresh one, and what the processes need put into it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.report.schema import EventLog, History, Report

STARTED = ".started"
"""Which start of the run this is, and when its first chief began."""
RECORDED = (Report.FILE_NAME, "report.html", EventLog.FILE_NAME, STARTED)
"""What the chief writes for each start of the run anew."""
OF_ONE_START = (*RECORDED, "logs")
"""What a resumed run leaves anew."""
OWN = ("checkpoints", "tensorboard", History.FILE_NAME, *OF_ONE_START)
"""All that a run leaves in its folder; nothing else there is ever touched."""


@dataclass(frozen=True)
class RunFolder:
    """Where one run leaves its results."""

    path: Path

    @property
    def job(self) -> Path:
        """The resolved job, as JSON."""
        return self.path / "job.json"

    def log(self, role: str, index: int) -> Path:
        """A process's log."""
        return self.path / "logs" / f"{role}-{index}.log"


@contextmanager
def claimed(path: Path, job: Job, fresh: bool) -> Iterator[RunFolder]:
    """A run folder that no other run uses until the block is left.

    Raises:
        UsageError: It cannot be written, or another run has it.
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
            raise UsageError(f"--out {path}: another run is using it, expected a folder of its own") from error
        try:
            clear(folder.path, OWN if fresh else OF_ONE_START)
            (folder.path / "logs").mkdir(exist_ok=True)
            folder.job.write_text(job.model_dump_json(indent=2))
        except OSError as error:
            raise UsageError(
                f"--out {path}: {error.strerror or error}, expected a folder that can be written"
            ) from error
        yield folder


def clear(folder: Path, names: tuple[str, ...]) -> None:
    """Removes files and folders, where they are there, from a folder."""
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
