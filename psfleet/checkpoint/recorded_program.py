"""The job and the program folder that a checkpoint records."""

from __future__ import annotations

from pathlib import Path

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import UsageError
from psfleet.job.job import Job, parse_job


def recorded_program(checkpoint: Checkpoint, otherwise: str = "one of psfleet train") -> tuple[Job, Path]:
    """The job that wrote a checkpoint, and the folder that is searched first for its program.

    Args:
        otherwise: What is expected of the caller, for the error if there is none.

    Raises:
        UsageError: The checkpoint records no program.
        BadJobError: The recorded job is none of this version.
    """
    content, folder = checkpoint.job, checkpoint.extra.get("program_folder")
    if content is None or not isinstance(folder, str):
        raise UsageError(f"checkpoint {checkpoint.folder} names no program, expected {otherwise}")
    return parse_job(content, source=f"job of checkpoint {checkpoint.folder}"), Path(folder)
