"""The results of a study in containers as copied to a folder of this machine, which never replaces further results."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from psfleet.errors import UsageError
from psfleet.files import folder_lock, replace_file, try_lock
from psfleet.job.job import Job
from psfleet.launch.platform import TRAINING, Member, Platform
from psfleet.launch.transfer import STAGING, extracted
from psfleet.polling import wait_until
from psfleet.sweep import results
from psfleet.sweep.database import DATABASE, storage_errors
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import StoredStudy

WEIGHTS = "weights"
JOURNAL = DATABASE + "-journal"
FILES = (results.TRIALS, results.BEST, f"{results.BEST_PROGRAM}.py", results.REPORT, JOURNAL, DATABASE)
COPY_SECS = 600.0
"""How long another command may copy results into the folder."""


def require_copy(folder: Path, on: str, is_there: bool = True) -> None:
    """Checks that a folder has no study, or only a copy of what the platform has.

    Args:
        on: Name of the platform.
        is_there: Whether the platform has results under the study's name.

    Raises:
        UsageError: It has other results, which the next copy would replace.
    """
    path = folder / DATABASE
    if not path.exists():
        return
    record = _record(folder)
    if record.get("platform") != on:
        where = f"on {record['platform']}" if record.get("platform") else "of processes of this machine"
        raise UsageError(f"{folder} has a study {where}, expected another folder (--out), or --fresh to delete it")
    if not is_there:
        raise UsageError(
            f"{folder} has a copy of a study whose results on {on} were deleted, expected another folder (--out), or "
            "--fresh to delete it: without --on, processes of this machine continue it"
        )
    if _digest(path) not in record["trials"]:
        raise UsageError(
            f"{folder}: the study was continued on this machine after it was copied from {on}, expected another folder "
            "(--out), or --fresh to delete it"
        )


def copy_study(platform: Platform, job: Job, folder: Path, on: str) -> None:
    """Copies the results of a study; those of a study that has none yet replace nothing.

    Args:
        job: Of its fleet.
        on: Name of the platform.

    Raises:
        UsageError: The folder has results that this copy would replace.
        LostPeerError: The copy broke off.
    """
    staging = folder / STAGING
    with _only_copy(folder):
        shutil.rmtree(staging, ignore_errors=True)
        try:
            staging.mkdir()
            names = [*extracted(platform, job, [WEIGHTS, *FILES], staging)]
            if Path(DATABASE) in names:
                require_copy(folder, on)
                _take(names, staging, folder, on)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def copied_study(loaded: LoadedStudy, folder: Path) -> list[Any]:
    """The finished trials of a copied study; none: nothing was copied.

    Its files are written anew, because the program has another folder here.
    """
    if not (folder / DATABASE).exists():
        return []
    with _only_copy(folder), storage_errors(folder):
        stored = StoredStudy(loaded, folder)
        finished = stored.finished()
        results.write(loaded, folder, finished, stored.repeated())
        return finished


def save_logs(platform: Platform, members: Sequence[Member], folder: Path) -> None:
    """Writes the logs of the driver and the workers of a study to its folder."""
    with _only_copy(folder):
        (folder / "logs").mkdir(exist_ok=True)
        for member in members:
            if member.role in TRAINING and member.started:
                name = "driver" if member.role == "chief" else f"worker-{member.index}"
                replace_file(folder / "logs" / f"{name}.log", "".join(f"{line}\n" for line in platform.log(member)))


def _take(names: Sequence[Path], staging: Path, folder: Path, on: str) -> None:
    """Replaces the files of a folder by those that were copied; the database at last."""
    before = [_digest(folder / DATABASE)] if (folder / DATABASE).exists() else []
    # With both digests, the folder is known as a copy also if this process is killed in between.
    record = {"platform": on, "trials": [*before, _digest(staging / DATABASE)]}
    replace_file(folder / results.COPIED, json.dumps(record))
    # SQLite has removed the journal of a driver that was killed, when the digest was made.
    names = [name for name in names if (staging / name).exists()]
    (folder / WEIGHTS).mkdir(exist_ok=True)
    for path in [*(folder / WEIGHTS).iterdir(), *(folder / name for name in FILES)]:
        if path.relative_to(folder) not in names:
            path.unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == Path(DATABASE)):
        (staging / name).replace(folder / name)


def _record(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / results.COPIED).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _digest(path: Path) -> str:
    """A digest of the trials in a database: it does not change when the database is only read."""
    query = "SELECT trial_id, number, state, datetime_complete FROM trials ORDER BY trial_id"
    try:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute(query).fetchall()
    except sqlite3.Error as error:
        raise UsageError(f"{path}: {error}, expected the storage of a study, or --fresh") from error
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@contextmanager
def _only_copy(folder: Path) -> Iterator[None]:
    """Context manager that locks the folder; waits for another command that copies results to it."""
    with folder_lock(folder) as lock:
        wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), COPY_SECS, f"another command to leave {folder}")
        yield
