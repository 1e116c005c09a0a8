"""Where the checkpoints of a run are: in a folder of its run folder, or in the object store that its job names.

A store has what a run folder would have: the folder `checkpoints`, and a copy of `report.json` beside it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import BadJobError, UsageError
from psfleet.files import replace_file
from psfleet.job.job import Job
from psfleet.job.store_url import checked, require_package

Folder = Path | StoreFolder
"""A folder of checkpoints or of one checkpoint."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, in a run folder or in a store."""
REPORT = "report.json"
"""The copy of the report, in a store."""
STORE_FILE = ".store"
"""File of a run folder whose checkpoints are in a store: the URL of the store."""
STORE_FLEET = ".store-fleet"
"""File of a run folder: the fleet to which a store's prefix belongs; see `psfleet.checkpoint.store_lease`."""


def parse(text: str) -> Folder:
    """The folder of a path or of a URL.

    Raises:
        UsageError: It is not the URL of a supported store.
    """
    if "://" not in text:
        return Path(text)
    try:
        return StoreFolder(checked(text))
    except ValueError as error:
        raise UsageError(f"{text}: {error}") from error


def root_of(out: Path, job: Job) -> Folder:
    """The folder of the checkpoints of a job whose run folder is `out`."""
    return out / CHECKPOINTS if job.checkpoint.store is None else StoreFolder(job.checkpoint.store) / CHECKPOINTS


def recorded_root(out: Folder) -> Folder:
    """The folder of the checkpoints of a run folder, or of the store that `record` has noted there."""
    if isinstance(out, Path):
        with suppress(OSError, UnicodeDecodeError):
            # Empty after a power failure.
            if url := (out / STORE_FILE).read_text(encoding="utf-8").strip():
                return parse(url) / CHECKPOINTS
    return out / CHECKPOINTS


def record(out: Path, job: Job) -> None:
    """Notes in a run folder which store has its checkpoints, for commands that know only the folder.

    Raises:
        OSError: The folder cannot be written.
    """
    if job.checkpoint.store is None:
        (out / STORE_FILE).unlink(missing_ok=True)
        return
    replace_file(out / STORE_FILE, f"{job.checkpoint.store}\n")


def require_usable(job: Job) -> None:
    """Checks that this process can read the store of its job, if the job has one.

    Raises:
        BadJobError: The package is not installed, the credentials are refused, or there is no such bucket.
        StoreError: The store does not answer.
    """
    if job.checkpoint.store is None:
        return
    require_package(job.checkpoint.store)
    try:
        (StoreFolder(job.checkpoint.store) / CHECKPOINTS).iterdir()
    except StoreError as error:
        raise bad_store(error) if error.is_denied else error from error


def require_not_refused(job: Job) -> None:
    """As `require_usable`, but accepts a store that does not answer, for a process that will try again later."""
    with suppress(StoreError):
        require_usable(job)


def bad_store(error: StoreError) -> BadJobError:
    """The error of a store that cannot be used by this job."""
    return BadJobError(
        f"checkpoint.store: {error}; expected a bucket that exists, and credentials in the environment that may list, "
        "read, write and delete there"
    )
