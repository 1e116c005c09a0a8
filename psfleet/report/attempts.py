"""Merges the report of an attempt into the report of its run, which keeps what earlier attempts have measured."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psfleet.checkpoint.in_progress import may_be_in_progress
from psfleet.checkpoint.location import Folder, parse, recorded_root
from psfleet.checkpoint.store import has_checkpoints, newest_committed, newest_from
from psfleet.errors import DONE, PsfleetError
from psfleet.job.differences import changes
from psfleet.job.job import Job
from psfleet.report.records import Attempt, Status
from psfleet.report.schema import CheckpointInfo, Event, Report

logger = logging.getLogger("psfleet.report")

OUTCOME = ("status", "exit_code", "error", "name", "run", "stopped_early")
"""Fields that are always those of the newest attempt."""
OF_MODEL = ("final_step", "target_step")
"""Fields that are those of the newest attempt that trained or is done."""
OF_TRAINING = ("mode", "seconds", "training_seconds", "versions")
"""Fields that are those of the newest attempt that trained."""


def earlier_report(folder: Path) -> Report | None:
    """The report in a run folder; None if there is none, or if it cannot be read, which is logged."""
    if not (folder / Report.FILE_NAME).exists():
        return None
    try:
        return Report.read(folder)
    except PsfleetError as error:
        logger.warning("not used: %s", error)
        return None


def set_aside(folder: Path) -> None:
    """Renames a report that `earlier_report` cannot read, for example of a later version, which would be replaced."""
    path = folder / Report.FILE_NAME
    if path.exists():
        path.replace(folder / Report.UNREADABLE_NAME)
        logger.warning("%s cannot be read: kept as %s", path, Report.UNREADABLE_NAME)


def newest_attempt(folder: Path) -> dict[str, Any]:
    """Run, status and start time of the newest attempt that the report in a run folder has; empty if there is none."""
    try:
        report = json.loads((folder / Report.FILE_NAME).read_bytes())
        newest = report["attempts"][-1] if report.get("attempts") else report
        return {"run": report["run"], "status": report["status"], "started": newest.get("started", 0.0)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def resumed_from(checkpoints: Folder, job: Job) -> tuple[int | None, list[str]]:
    """Step of the newest checkpoint, and the fields of the job that have changed since; 0 and no field for a new run.

    The step is None if there are checkpoints and none can be read, which ends the run later.
    """
    try:
        found = newest_committed(checkpoints)
        if found is None and has_checkpoints(checkpoints):
            return None, []
    except (PsfleetError, OSError) as error:
        logger.warning("the step to resume from is not known: %s", error)
        return None, []
    if found is None:
        return 0, []
    return found.step, changes(found.job, job)


def with_attempt(
    report: Report, started: float, first_step: int | None, job_changes: Sequence[str], seconds: float | None = None
) -> Report:
    """A report of one attempt, with that attempt as its entry.

    Args:
        started: When the attempt started, in Unix time in seconds; identifies it among the attempts of the run.
        first_step: Of the checkpoint that it started from; None: not known.
        job_changes: What of the job had changed since that checkpoint.
        seconds: Its duration; None: as in the report.
    """
    entry = Attempt(
        run=report.run,
        started=started,
        seconds=report.seconds if seconds is None else seconds,
        status=report.status,
        exit_code=report.exit_code,
        error=report.error,
        first_step=first_step,
        final_step=report.final_step or first_step,
        target_step=report.target_step,
        changes=list(job_changes),
    )
    return report.model_copy(update={"attempts": [entry]})


def with_end(report: Report, status: Status, exit_code: int, error: str | None) -> Report:
    """A report with another outcome, which its newest attempt has, too."""
    update = {"status": status, "exit_code": exit_code, "error": error}
    attempts = [each.model_copy(update=update) for each in report.attempts[-1:]]
    return report.model_copy(update={**update, "attempts": [*report.attempts[:-1], *attempts]})


def merged(earlier: Report | None, new: Report) -> Report:
    """Merges the outcome of an attempt into the report of the attempts before.

    Fields that the attempt knows replace those of the earlier report. Those that it does not know stay: numbers of an
    attempt that trained no step, metrics without an evaluation, the checkpoint if it verified none. Merging the same
    attempt again changes nothing.

    Args:
        earlier: The report of the attempts before, or of this one; None: there is none.
        new: What is known of the attempt; its last entry of `attempts` is this attempt.
    """
    new = new if new.attempts else with_attempt(new, 0.0, None, [])
    if earlier is None:
        return new
    earlier = earlier if earlier.attempts else with_attempt(earlier, 0.0, None, [])
    kept = {name: getattr(earlier, name) for name in Report.model_fields if not _knows(earlier, new, name)}
    return new.model_copy(update={**kept, **_events(earlier, new), "attempts": _attempts(earlier, new)})


def standing(report: Report, folder: Path) -> Report:
    """A report whose checkpoints are in the run folder.

    The newest valid checkpoint replaces that of the report if that is older or was deleted: an attempt that failed does
    not know the last checkpoint that it committed. A best checkpoint that was deleted is removed: an attempt whose job
    has no `checkpoint.best` does not keep it.
    """
    try:
        return _standing(report, folder)
    except PsfleetError as error:
        logger.warning("whether the checkpoints of the report are still there is not known: %s", error)
        return report


def _standing(report: Report, folder: Path) -> Report:
    if report.best is not None and not parse(report.best.path).is_dir():
        report = report.model_copy(update={"best": None})
    named = report.checkpoint
    if named is None:
        return report
    newest = newest_committed(recorded_root(folder))
    if parse(named.path).is_dir() and (newest is None or newest.step <= named.step):
        return report
    return report.model_copy(update={"checkpoint": newest_checkpoint(folder)})


def newest_checkpoint(folder: Path) -> CheckpointInfo | None:
    """The newest verified checkpoint in a run folder; None if there is none."""
    try:
        found = newest_from(recorded_root(folder), 0, may_be_in_progress)
    except PsfleetError as error:
        logger.warning("the newest checkpoint is not known: %s", error)
        return None
    return None if found is None else CheckpointInfo(path=str(found.folder), step=found.step)


def _has_trained(earlier: Report, new: Report) -> bool:
    """Whether an attempt made a step, or ended a run whose last step was made."""
    has_steps = new.loss is not None or new.step_secs.p50 is not None or new.gradients.pushed > 0
    return has_steps or new.final_step > earlier.final_step


def _knows(earlier: Report, new: Report, name: str) -> bool:
    """Whether an attempt has measured a field."""
    if name in OUTCOME:
        return True
    if name in ("gradients", "staleness"):
        return new.gradients.pushed > 0
    field = Report.model_fields[name]
    is_measured = bool(getattr(new, name) != field.get_default(call_default_factory=True, validated_data={}))
    if name == "training_metrics":
        # An attempt in async or ssp mode has none: those of an earlier one are of other steps.
        return is_measured or new.loss is not None
    if name in OF_MODEL:
        return is_measured and (new.exit_code == DONE or _has_trained(earlier, new))
    return is_measured and (name not in OF_TRAINING or _has_trained(earlier, new))


def _events(earlier: Report, new: Report) -> dict[str, Any]:
    """Events and restarts: those of an attempt that trained, or the earlier ones and what an attempt added."""
    if _has_trained(earlier, new):
        return {"events": new.events, "restarts": new.restarts}
    added: list[Event] = [event for event in new.events if event not in earlier.events]
    restarts = earlier.restarts + sum(event.kind == "restarted" for event in added)
    return {"events": [*earlier.events, *added], "restarts": restarts}


def _attempts(earlier: Report, new: Report) -> list[Attempt]:
    """The attempts of both, by their start; the newest of the new report is the last."""
    *before, newest = new.attempts
    found = {each.started: each for each in [*earlier.attempts, *before] if each.started != newest.started}
    return [*sorted(found.values(), key=lambda each: each.started), newest]
