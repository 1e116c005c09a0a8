"""Checks a report against the files of its run folder: the checkpoint that proves a success, the cause of a failure."""

from __future__ import annotations

from pathlib import Path

from psfleet import errors
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.store import verify
from psfleet.errors import PERMANENT_CODES, BadJobError, NoCheckpointError
from psfleet.report.schema import CheckpointInfo, Report
from psfleet.service.logs import parse_line


def validated(report: Report, folder: Path) -> Report:
    """The report of a run whose results were copied to `folder`, with the path of the copied checkpoint.

    A success becomes a failure (65) if that checkpoint is missing, damaged, or not of the final step.
    """
    saved = report.checkpoint
    if saved is None:
        return report if report.exit_code else _failed(report, "the report names no checkpoint")
    path = folder / "checkpoints" / Path(saved.path).name
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


def first_failure(folder: Path, code: int) -> str | None:
    """Which process failed first with an exit code, and why, by the logs in the folder.

    The other processes end with the same code once they know of it. Of temporary failures, only the last one of each
    process counts: the process was restarted after the others.
    """
    found = []
    for path in sorted((folder / "logs").glob("*.log")):
        entries = filter(None, map(parse_line, path.read_bytes().splitlines()))
        failures = [entry for entry in entries if entry.get("event") == "failed"]
        found += failures if code in PERMANENT_CODES else failures[-1:]
    failed = [entry for entry in found if entry["exit_code"] == code]
    if not failed:
        return None
    first = min(failed, key=lambda entry: entry["time"])
    return f"{first['role']} {first.get('index', '')}: {first['message']}"


def _failed(report: Report, error: str) -> Report:
    update = {"status": "failed", "exit_code": NoCheckpointError.exit_code, "error": error}
    return report.model_copy(update=update)
