"""What containers need of a trained model: the results of a fleet on their platform, or its program on this machine."""

from __future__ import annotations

from pathlib import Path

from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.launch.platform import Platform


def require_results(platform: Platform, path: Path, job: Job) -> None:
    """Checks that the fleet of a job has results on the platform.

    Args:
        path: Of the job file, for the message.

    Raises:
        UsageError: It has none.
    """
    if not platform.has_results(job.name):
        raise UsageError(
            f"{path}: no volume with results of fleet {job.name} {platform.where}, expected psfleet up there before, "
            "or a run folder instead of the job file"
        )


def program_home(text: str, job: Job, folder: Path) -> Path:
    """The folder to which the mounts of a model's containers are relative; the current one if only images are used.

    Args:
        text: What the user has named the model by, for the message.
        folder: Of the program, as its run has recorded it.

    Raises:
        UsageError: The folder is to be mounted, and is not on this machine.
    """
    if job.container.program == "mount" and not folder.is_dir():
        raise UsageError(
            f"{text}: the folder of its program, {folder}, is not on this machine, expected the job file of a run "
            "whose results are on the platform"
        )
    return folder if folder.is_dir() else Path.cwd()
