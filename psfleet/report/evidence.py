"""Checks a report against the files of its run folder: the checkpoint that proves a success, the cause of a failure."""

from __future__ import annotations

from pathlib import Path

from psfleet import errors
from psfleet.checkpoint.location import CHECKPOINTS, parse
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.store import verify
from psfleet.errors import PERMANENT_CODES, BadJobError, NoCheckpointError
from psfleet.report.attempts import with_end
from psfleet.report.schema import Report
from psfleet.service.logs import is_failure, parse_line


def validated(report: Report, folder: Path) -> Report:
    """The report of a run whose results were copied to `folder`, with the paths of the copied checkpoints.

    A success becomes a failure (65) if the last checkpoint is missing, damaged, or not of the last step. A checkpoint
    in a store is not copied: the chief has verified it there, and this machine may not be allowed to read it.
    """
    report = with_own_checkpoints(report, folder)
    if report.checkpoint is None:
        return report if report.exit_code else _failed(report, "the report names no checkpoint")
    folder_of_last = parse(report.checkpoint.path)
    if report.exit_code != errors.DONE or not isinstance(folder_of_last, Path):
        return report
    try:
        checkpoint = read_manifest(folder_of_last)
        verify(checkpoint)
    except (NoCheckpointError, BadJobError) as error:
        return _failed(report, f"the copied checkpoint is not whole: {error}")
    if checkpoint.step < report.target_step and report.stopped_early is None:
        return _failed(report, f"the copied checkpoint has step {checkpoint.step}, expected {report.target_step}")
    return report


def with_own_checkpoints(report: Report, folder: Path) -> Report:
    """A report whose checkpoints are the copies in the folder, unless they are in a store."""

    def copy(path: str) -> str:
        return str(folder / CHECKPOINTS / Path(path).name) if isinstance(parse(path), Path) else path

    saved, best = report.checkpoint, report.best
    return report.model_copy(
        update={
            "checkpoint": saved and saved.model_copy(update={"path": copy(saved.path)}),
            "best": best and best.model_copy(update={"path": copy(best.path)}),
        }
    )


def first_failure(folder: Path, code: int) -> str | None:
    """Which process failed first with an exit code, and why, by the logs in the folder.

    The other processes end with the same code once they know of it. Of temporary failures, only the last one of each
    process counts: the process was restarted after the others.
    """
    found = []
    for path in sorted((folder / "logs").glob("*.log")):
        # Line by line: the log of a long run does not fit into memory.
        with path.open("rb") as lines:
            entries = filter(None, map(parse_line, lines))
            failures = [entry for entry in entries if is_failure(entry) and "role" in entry]
        found += failures if code in PERMANENT_CODES else failures[-1:]
    failed = [entry for entry in found if entry["exit_code"] == code]
    if not failed:
        return None
    first = min(failed, key=lambda entry: entry["time"])
    return f"{first['role']} {first.get('index', '')}: {first['message']}"


def _failed(report: Report, error: str) -> Report:
    return with_end(report, "failed", NoCheckpointError.exit_code, error)
