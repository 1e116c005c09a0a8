"""What a launcher says of a run whose results it copied: no success without a verified checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.store import verify
from psfleet.errors import BadJobError, NoCheckpointError
from psfleet.job.job import Job
from psfleet.launch.local.child import parse_line
from psfleet.report.schema import CheckpointInfo, EventLog, History, Report
from psfleet.run_folder import RunFolder

ALWAYS = ("checkpoints", "tensorboard", History.FILE_NAME)
"""What is copied however old it is,"""
OF_THIS_START = (EventLog.FILE_NAME, Report.FILE_NAME)
"""and what an earlier start may have left."""
STOPPED = (errors.SIGNAL_BASE + 15, errors.SIGNAL_BASE + 2)
"""Exit codes of a container that somebody stopped."""


def checked(report: Report, folder: RunFolder) -> Report:
    """A report whose checkpoint is the copy in the folder, and whose success is proved by it."""
    saved = report.checkpoint
    if saved is None:
        return report if report.exit_code else _failed(report, "the report names no checkpoint")
    path = folder.path / "checkpoints" / Path(saved.path).name
    report = report.model_copy(update={"checkpoint": CheckpointInfo(path=str(path), step=saved.step)})
    if report.exit_code != errors.DONE:
        return report
    try:
        checkpoint = read_manifest(path)
        verify(checkpoint)
    except (NoCheckpointError, BadJobError) as error:
        return _failed(report, f"the copied checkpoint is not whole: {error}")
    if checkpoint.step < report.target_step:
        return _failed(report, f"the copied checkpoint has step {checkpoint.step}, expected {report.target_step}")
    return report


def unreported(job: Job, folder: RunFolder, code: int, error: str) -> Report:
    """What the launcher reports when the chief could not."""
    return Report(
        status="stopped" if code in STOPPED else "failed",
        exit_code=code,
        error=error,
        name=job.name,
        run=job.name,
        mode=job.update.mode,
        target_step=job.train.steps,
        events=EventLog(folder.path / EventLog.FILE_NAME).read(),
    )


def _failures(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The last words of the processes that failed, out of the logs in the folder."""
    for path in sorted((folder.path / "logs").glob("*.log")):
        for line in path.read_bytes().splitlines():
            entry = parse_line(line)
            if entry is not None and entry.get("event") == "failed":
                yield entry


def first_failure(folder: RunFolder, code: int | None) -> str | None:
    """Who failed first with an exit code, and of what, by the logs in the folder: others end alike when they hear."""
    told = [entry for entry in _failures(folder) if entry["exit_code"] == code]
    if not told:
        return None
    first = min(told, key=lambda entry: entry["time"])
    return f"{first['role']} {first.get('index', '')}: {first['message']}"


def _failed(report: Report, error: str) -> Report:
    return report.model_copy(
        update={"status": "failed", "exit_code": NoCheckpointError.exit_code, "error": error}
    )  # fmt: skip
