"""The run folder: the names of the files in it, whose run it is, and the lock that one run at a time holds on it."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from psfleet.checkpoint import committed
from psfleet.errors import DeadlineError, UsageError
from psfleet.job.job import Job
from psfleet.polling import wait_until
from psfleet.report.schema import EventLog, History, Report

LOCAL = "local"
"""The platform of runs on this machine's processes."""
LOCK = ".lock"
"""File that a run locks exclusively while it uses the folder."""
LOCK_SECS = 0.2
"""How long a run waits for the lock: `is_locked` holds it for a moment."""
OWNER = ".run"
"""Marker of a run folder: the job's name and the platform, as JSON."""
LOGS = "logs"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"
"""Folder of the run's checkpoints."""
STARTED = ".started"
"""Run-attempt marker, written by the chief: identifier and start time of the attempt."""
REPORTED = (Report.FILE_NAME, "report.html", EventLog.FILE_NAME)
"""Files that tell about all attempts of the run; each attempt adds to them, none deletes them."""
OF_ONE_ATTEMPT = (Report.DRAFT_NAME, committed.FILE_NAME)
"""Files that the chief deletes when a new attempt starts."""
STEP = "[0-9]" * 8 + "*-g[0-9]*"
WRITTEN = {LOGS: ("*.log",), CHECKPOINTS: (STEP, f".{STEP}.tmp"), TENSORBOARD: ("events.out.tfevents.*",)}
"""What runs write into the folders of a run folder."""
OF_ONE_START = (*OF_ONE_ATTEMPT, STARTED, LOGS)
"""Files and folders that a resumed run replaces; of folders, only `WRITTEN`."""
OVERWRITTEN = (*REPORTED, *OF_ONE_START)
"""Files and folders that every run writes anew or deletes."""
OWN = (CHECKPOINTS, TENSORBOARD, History.FILE_NAME, *OVERWRITTEN)
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


@dataclass(frozen=True)
class Owner:
    """The run that a folder belongs to: the job's name, and the platform; empty if it is not known."""

    name: str
    platform: str


def default_folder(name: str, platform: str = LOCAL) -> Path:
    """`runs/NAME`; `runs/NAME-PLATFORM` if that has a run, or the former one on another platform."""
    folder = Path("runs") / name
    own = folder.with_name(f"{name}-{platform}")
    found = owner(folder)
    is_elsewhere = found is not None and found.platform not in ("", platform) and (folder / CHECKPOINTS).is_dir()
    return own if is_elsewhere or (owner(own) == Owner(name, platform) and (own / CHECKPOINTS).is_dir()) else folder


@contextmanager
def claimed(path: Path, job: Job, fresh: bool, platform: str = LOCAL, keeps: bool = False) -> Iterator[RunFolder]:
    """Context manager that locks a run folder, deletes what one start leaves, and writes the resolved job.

    Args:
        path: The folder; created if it is missing.
        job: The resolved job.
        fresh: Whether checkpoints, history and reports of earlier runs are deleted too.
        platform: Where the run is: `local`, or the name of a platform.
        keeps: Whether what an earlier start has left stays, its logs included.

    Raises:
        UsageError: The folder cannot be written, another run has locked it, or `check_owner` refuses it.
    """
    folder = RunFolder(path.resolve())
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = (folder.path / LOCK).open("w")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror or error}, expected a folder that can be written") from error
    with lock:
        try:
            wait_until(lambda: _try_lock(lock, fcntl.LOCK_EX), LOCK_SECS, f"the lock of {path}", poll_secs=0.02)
        except DeadlineError as error:
            raise UsageError(f"--out {path}: another run is using it, expected another folder") from error
        check_owner(path, job, fresh, platform)
        try:
            if not keeps:
                clear(folder.path, OWN if fresh else OF_ONE_START)
            (folder.path / LOGS).mkdir(exist_ok=True)
            folder.job.write_text(job.model_dump_json(indent=2), encoding="utf-8")
            (folder.path / OWNER).write_text(json.dumps({"name": job.name, "platform": platform}), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--out {path}: {error.strerror or error}, expected a folder that can be written"
            ) from error
        yield folder


def check_owner(path: Path, job: Job, fresh: bool, platform: str) -> None:
    """Refuses a folder whose files are not those of this run.

    Raises:
        UsageError: The folder has files of the user's that a run would delete, or it has a run of another job, or of
            this one on another platform, and `fresh` is false.
    """
    found = owner(path)
    if found is None:
        theirs = [name for name in (OWN if fresh else OVERWRITTEN) if _exists(path / name)]
        if theirs:
            raise UsageError(
                f"--out {path}: has {', '.join(theirs)}, which no run has written (there is no {OWNER}); expected a "
                "new folder or that of a run"
            )
        return
    if fresh:
        return
    if found.name != job.name:
        raise UsageError(
            f"--out {path}: has a run of job {found.name}; expected another folder for job {job.name}, or --fresh to "
            "delete that run"
        )
    if found.platform not in ("", platform) and (path / CHECKPOINTS).is_dir():
        command = "train" if found.platform == LOCAL else f"up --on {found.platform}"
        raise UsageError(
            f"--out {path}: has a run on platform {found.platform}, which `psfleet {command}` continues; expected "
            "another folder, or --fresh to delete that run"
        )


def is_locked(path: Path) -> bool:
    """Whether a run holds the lock of a run folder: on this machine, or while its results are copied."""
    try:
        with (path / LOCK).open("r") as lock:
            return not _try_lock(lock, fcntl.LOCK_SH)
    except OSError:
        return False


def _try_lock(lock: IO[str], kind: int) -> bool:
    """Locks an open file, shared or exclusively; False if another process has it."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def owner(path: Path) -> Owner | None:
    """The owner of a run folder; None if no run has written it."""
    for name in (OWNER, "job.json"):
        try:
            content = json.loads((path / name).read_bytes())
            return Owner(str(content["name"]), str(content.get("platform", "")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return None


def _exists(path: Path) -> bool:
    """Whether there is a file, or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def clear(folder: Path, names: tuple[str, ...]) -> None:
    """Deletes the named files and folders in a folder, if they exist; of the folders, only what runs write there."""
    for name in names:
        path = folder / name
        if not path.is_dir():
            path.unlink(missing_ok=True)
            continue
        for entry in [entry for pattern in WRITTEN[name] for entry in path.glob(pattern)]:
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        with suppress(OSError):
            # The user's own files keep it.
            path.rmdir()
