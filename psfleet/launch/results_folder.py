"""Checks the folder to which the results of a run on a platform will be copied, before the run is started."""

from __future__ import annotations

from pathlib import Path

from psfleet.checkpoint.location import CHECKPOINTS
from psfleet.checkpoint.store import has_checkpoints
from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.launch.platform import Platform
from psfleet.run_folder import check_owner, folder_errors


def require_usable(platform: Platform, job: Job, folder: Path, fresh: bool, on: str) -> None:
    """Refuses a folder in which the results of a run would mix with those of another one.

    Args:
        platform: Where the run is started, or is up.
        job: Of the run.
        folder: The run folder.
        fresh: Whether what an earlier run has left there is deleted.
        on: Name of the platform.

    Raises:
        UsageError: `check_owner` refuses the folder, or it has checkpoints of a run of which the platform has nothing,
            so that the new run would not resume from them.
    """
    check_owner(folder, job, fresh, on)
    with folder_errors(folder):
        is_trained = has_checkpoints(folder / CHECKPOINTS)
    # A run with a store resumes from there; its checkpoints are not copied.
    if fresh or job.checkpoint.store is not None or not is_trained:
        return
    if not platform.has_results(job.name) and not platform.members(job.name):
        raise UsageError(
            f"--out {folder}: has a copy of a run whose results on {on} were deleted, or are in another namespace or "
            "on another engine; expected another folder, or --fresh to delete the copy"
        )
