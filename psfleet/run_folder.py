"""The run folder: the names of the files in it, whose run it is, and the lock that one run at a time holds on it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from psfleet.checkpoint import committed, location
from psfleet.checkpoint.location import CHECKPOINTS
from psfleet.errors import DeadlineError, UsageError
from psfleet.files import replace_file, require_utf8, try_lock
from psfleet.job.callback import STATE_PREFIX
from psfleet.job.function_program import FILES
from psfleet.job.job import Job
from psfleet.polling import wait_until
from psfleet.report import history, hold, pictures
from psfleet.report.reductions import ReductionLog
from psfleet.report.schema import EvaluationLog, EventLog, Report
from psfleet.report.training_metrics import TrainingMetricsLog

LOCAL = "local"
"""The platform of `psfleet train`."""
HOSTS = "hosts"
"""The platform of `psfleet task`: processes that no launcher has started."""
LOCK = ".lock"
"""File that a run locks exclusively while it uses the folder."""
LOCK_SECS = 0.2
"""How long a run waits for the lock: `is_locked` holds it for a moment."""
OWNER_FILE = ".run"
"""Marker of a run folder: the job's name and the platform, as JSON."""
JOB_FILE = "job.json"
"""The resolved job."""
LOGS = "logs"
TENSORBOARD = "tensorboard"
PICTURES = pictures.FOLDER
PROGRAM = "program"
"""Folder of a training program that is a function of a notebook or script."""
CALLBACKS = "callbacks"
"""Folder of the callbacks' own files: one folder for each of them (`psfleet.callbacks.folders`)."""
STARTED = ".started"
"""Run-attempt marker, written by the chief: identifier and start time of the attempt."""
CONTROL = ".control"
"""Where the launcher of a run of local processes can be signalled, and its chief be called: see `psfleet.handle`."""
REPORTED = (Report.FILE_NAME, Report.UNREADABLE_NAME, "report.html", EventLog.FILE_NAME)
"""Files that describe all attempts of the run; each attempt adds to them, none deletes them."""
GRAPH_WRITTEN = ".graph_written"
"""Marker, written by the chief: TensorBoard's files have the training graph of this attempt."""
OF_ONE_ATTEMPT = (Report.DRAFT_NAME, committed.FILE_NAME, GRAPH_WRITTEN)
"""Files that the chief deletes when a new attempt starts."""
CHECKPOINT = "[0-9]" * 8 + "*-g[0-9]*"
"""Pattern of the names of checkpoints."""
PATTERNS = {
    LOGS: ("*.log",),
    CHECKPOINTS: (CHECKPOINT, f".{CHECKPOINT}.tmp"),
    TENSORBOARD: ("events.out.tfevents.*",),
    PICTURES: (f"*{pictures.SUFFIX}",),
    PROGRAM: FILES,
    CALLBACKS: (f"{STATE_PREFIX}*", f".{STATE_PREFIX}*"),
}
"""By subfolder, the patterns of what runs write there; everything else is the user's, and is never deleted."""
OF_ONE_START = (*OF_ONE_ATTEMPT, STARTED, CONTROL, hold.FILE_NAME, LOGS)
"""Files and subfolders whose content is deleted when a run starts or resumes."""
OVERWRITTEN = (*REPORTED, *OF_ONE_START)
"""Files and subfolders that every run writes anew or deletes."""
CONTINUED = (history.History.FILE_NAME, EvaluationLog.FILE_NAME, TrainingMetricsLog.FILE_NAME, ReductionLog.FILE_NAME)
"""Files that grow while a run trains, which a resumed run continues."""
ALL_RESULTS = (CHECKPOINTS, TENSORBOARD, PICTURES, PROGRAM, CALLBACKS, *CONTINUED, *OVERWRITTEN)
"""Files and subfolders whose content `--fresh` deletes."""


@dataclass(frozen=True)
class RunFolder:
    """Paths in the folder of one run."""

    path: Path

    @property
    def job(self) -> Path:
        """The resolved job, as JSON."""
        return self.path / JOB_FILE

    @property
    def program(self) -> Path:
        """The folder of a stored training program; see `psfleet.job.function_program`."""
        return self.path / PROGRAM

    def log(self, role: str, index: int) -> Path:
        """The log of a process."""
        return self.path / LOGS / f"{role}-{index}.log"


@dataclass(frozen=True)
class Owner:
    """The run that a folder belongs to: the job's name, and the platform, empty if it is not known."""

    name: str
    platform: str


def default_folder(name: str, platform: str = LOCAL) -> Path:
    """The folder of a run without `--out`: `runs/NAME`, or `runs/NAME-PLATFORM`.

    The second one if the first one has checkpoints of another platform, or the second one has those of this run.
    """
    folder = Path("runs") / name
    own = folder.with_name(f"{name}-{platform}")
    found = owner(folder)
    is_elsewhere = found is not None and found.platform not in ("", platform) and (folder / CHECKPOINTS).is_dir()
    has_own = owner(own) == Owner(name, platform) and (own / CHECKPOINTS).is_dir()
    return own if is_elsewhere or has_own else folder


@contextmanager
def folder_errors(path: Path) -> Iterator[None]:
    """Context manager that turns errors of the file system into `UsageError`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror or error}, expected a folder that can be written") from error


@contextmanager
def claimed(
    path: Path, job: Job, fresh: bool, platform: str = LOCAL, keeps: bool = False, copy_secs: float = 0.0
) -> Iterator[RunFolder]:
    """Context manager that locks a run folder, deletes what one start leaves, and writes the resolved job.

    Args:
        path: The folder; created if it is missing.
        job: The resolved job.
        fresh: Whether checkpoints, history and reports of earlier runs are deleted too.
        platform: Name of the platform of the run.
        keeps: Whether what an earlier start has left stays, its logs included.
        copy_secs: How long another command may copy results of this run into the folder.

    Raises:
        UsageError: The folder cannot be written, another run has locked it, or `check_owner` refuses it.
        DeadlineError: Another command still copies results after `copy_secs`.
    """
    folder = RunFolder(require_utf8(path.resolve()))
    with folder_errors(path):
        folder.path.mkdir(parents=True, exist_ok=True)
        # Before there is a lock, by which `owner` knows the folder of a run.
        check_owner(path, job, fresh, platform)
        lock = (folder.path / LOCK).open("w")
    with lock:
        _wait_for_lock(lock, path, Owner(job.name, platform), copy_secs)
        check_owner(path, job, fresh, platform)
        with folder_errors(path):
            if not keeps:
                clear(folder.path, ALL_RESULTS if fresh else OF_ONE_START)
            (folder.path / LOGS).mkdir(exist_ok=True)
            # Whole or not at all: `check_owner` would refuse a folder with a job of no run.
            replace_file(folder.job, job.model_dump_json(indent=2))
            replace_file(folder.path / OWNER_FILE, json.dumps({"name": job.name, "platform": platform}))
            location.record(folder.path, job)
        yield folder


def _wait_for_lock(lock: IO[str], path: Path, own: Owner, copy_secs: float) -> None:
    """Locks a folder; waits for `copy_secs` if the folder is the run's own."""
    try:
        wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), LOCK_SECS, f"the lock of {path}", poll_secs=0.02)
    except DeadlineError as error:
        if not copy_secs or owner(path) != own:
            raise UsageError(f"--out {path}: another run is using it, expected another folder") from error
        wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), copy_secs, f"another command to copy results to {path}")


def check_owner(path: Path, job: Job, fresh: bool, platform: str) -> None:
    """Refuses a folder in which a run would delete or continue what is not its own.

    Raises:
        UsageError: The folder cannot be read; no run has written it, but it has files that this one would delete; or
            `fresh` is false and it has a run of another job, or checkpoints of this job on another platform.
    """
    found = owner(path)
    names = (JOB_FILE, *(ALL_RESULTS if fresh else OVERWRITTEN)) if found is None else ()
    with folder_errors(path):
        paths = [path / name for name in names]
        # An empty folder is not in the way.
        in_the_way = [each.name for each in paths if (any(each.iterdir()) if each.is_dir() else each.exists())]
        is_trained = (path / CHECKPOINTS).is_dir()
    if in_the_way:
        raise UsageError(
            f"--out {path}: has {', '.join(in_the_way)}, which no run has written (there is no {OWNER_FILE}); "
            "expected a new folder or that of a run"
        )
    if found is None or fresh:
        return
    if found.name != job.name:
        raise UsageError(
            f"--out {path}: has a run of job {found.name}; expected another folder for job {job.name}, or --fresh to "
            "delete that run"
        )
    if found.platform not in ("", platform) and is_trained:
        command = {LOCAL: "train", HOSTS: "task"}.get(found.platform, f"up --on {found.platform}")
        raise UsageError(
            f"--out {path}: has a run on platform {found.platform}, which `psfleet {command}` continues; expected "
            "another folder, or --fresh to delete that run"
        )


def is_locked(path: Path) -> bool:
    """Whether a run holds the lock of a run folder: on this machine, or while its results are copied."""
    try:
        with (path / LOCK).open("r") as lock:
            return not try_lock(lock, fcntl.LOCK_SH)
    except OSError:
        return False


def owner(path: Path) -> Owner | None:
    """The owner of a run folder; None if no run has written it, or this user cannot read it.

    A run of an earlier version has no marker, but `job.json` and a lock; without a lock, `job.json` is a file of the
    user's, for example a job file.
    """
    # `Path.exists` would raise PermissionError for a folder that this user cannot enter.
    for name in (OWNER_FILE, JOB_FILE) if os.path.exists(path / LOCK) else (OWNER_FILE,):
        try:
            content = json.loads((path / name).read_bytes())
            return Owner(str(content["name"]), str(content.get("platform", "")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return None


def clear(folder: Path, names: tuple[str, ...]) -> None:
    """Deletes the named files of a run folder, and in the named subfolders what matches `PATTERNS`."""
    for name in names:
        path = folder / name
        if not path.is_dir():
            path.unlink(missing_ok=True)
            continue
        for entry in [entry for pattern in PATTERNS[name] for entry in path.glob(pattern)]:
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        # Fails if the user's files are in it.
        with suppress(OSError):
            path.rmdir()
