"""Collects the results of a run and validates them: no success without a verified checkpoint."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psfleet import errors
from psfleet.checkpoint.location import root_of
from psfleet.errors import PERMANENT_CODES, STOPPED, BadJobError, LostPeerError, StorageError, UsageError
from psfleet.job.activity import named
from psfleet.job.job import Job, job_from_json
from psfleet.launch.platform import TRAINING, Member, Platform, chief_of, gone_for_good, may_restart
from psfleet.launch.shown import require
from psfleet.launch.transfer import copy_results, save_logs
from psfleet.report import html
from psfleet.report.attempts import earlier_report, newest_checkpoint, resumed_from, standing, with_attempt, with_end
from psfleet.report.evidence import first_failure, validated
from psfleet.report.schema import EventLog, Report
from psfleet.run_folder import Owner, RunFolder, claimed, owner

COPY_SECS = 600.0
"""How long another command may copy results into the same run folder."""


@dataclass(frozen=True)
class Start:
    """The start of an attempt of a run, for the report of an attempt whose chief wrote none.

    Attributes:
        run: The attempt's identifier.
        started: In seconds since 1970.
        first_step: Step of the newest checkpoint at that time; None: not known.
        changes: Fields of the job that had changed since that checkpoint.
        is_watched: Whether a launcher has followed the attempt up to now, so that its duration is known.
    """

    run: str
    started: float
    first_step: int | None = None
    changes: tuple[str, ...] = ()
    is_watched: bool = False

    @classmethod
    def now(cls, run: str, folder: RunFolder, job: Job) -> Start:
        """An attempt that a launcher starts."""
        first_step, changes = resumed_from(root_of(folder.path, job), job)
        return cls(run, time.time(), first_step, tuple(changes), is_watched=True)


def collect(platform: Platform, name: str, folder: Path, on: str) -> Report:
    """Copies results and logs of a run on a platform named `on` into a run folder, and publishes its report there.

    Returns:
        The chief's report, with the path of the copied checkpoint; or one that says why there is none, or that the
        copy is not valid. It is merged with the reports of earlier attempts, in the folder and on the platform.

    Raises:
        UsageError: There is no such fleet, or the folder cannot be used.
        LostPeerError: The copy broke off, or the fleet is being removed.
        StorageError: The folder cannot be written any more.
    """
    members = require(platform, name)
    job = platform.job(name)
    chief, gone = chief_of(members), gone_for_good(members, job)
    if chief is None:
        raise LostPeerError(f"fleet {name} has no chief any more, expected one: another command removes the fleet")
    with claimed(folder, job, fresh=False, platform=on, copy_secs=COPY_SECS) as run_folder:
        # Before the copy, which needs a volume or a pod: if it fails, the logs show why.
        save_logs(platform, name, members, run_folder)
        copied = copy_results(platform, job, run_folder.path, chief.created)
        report = copied.report if copied is not None and copied.is_new else None
        if report is not None and _is_of_last_process(report, chief):
            report = validated(report, run_folder.path)
        else:
            if copied is not None and report is None and copied.has_more_than(run_folder.path):
                _publish(copied.report, run_folder.path)
            ended = unreported(job, run_folder, members, gone, Start(job.name, chief.created))
            report = ended if report is None else with_end(report, ended.status, ended.exit_code, ended.error)
        return _publish(with_failure(report, gone), run_folder.path)


def _publish(report: Report, folder: Path) -> Report:
    """As `html.publish`; raises `StorageError` if the folder cannot be written."""
    try:
        return html.publish(report, folder)
    except OSError as error:
        raise StorageError(f"the report cannot be written to {folder}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Fetched:
    """What `fetch` found of a run.

    Attributes:
        report: In the run folder; None: no attempt of the run has ended.
        is_running: Whether its fleet trains, so that the report is that of the attempts before.
    """

    report: Report | None
    is_running: bool = False


def fetch(platform: Platform, name: str, job: Job | None, folder: Path, on: str) -> Fetched:
    """Copies the results of a run on a platform named `on` into a run folder, whether its fleet is up or down.

    Args:
        job: Names the image that reads the results of a fleet that is down; None: as in the run folder.

    Returns:
        The report; as from `collect` if the fleet has ended and is still there.

    Raises:
        UsageError: There are no results, the job is not known, or the folder cannot be used.
        LostPeerError: The copy broke off.
        StorageError: The folder cannot be written any more.
    """
    members = platform.members(name)
    chief = chief_of(members)
    if chief is not None and chief.activity:
        raise UsageError(
            f"fleet {name} is {named(chief.activity)}, expected a training run: the command that started it copies its "
            "results"
        )
    if chief is None:
        if not platform.has_results(name):
            raise UsageError(f"no fleet {name} {platform.where}, and no results of an earlier one, expected either")
        ran = _job_that_ran(folder, name, on, job)
        job = job or ran
    else:
        ran = job = platform.job(name)
        if chief.is_over and not may_restart(chief, job):
            return Fetched(collect(platform, name, folder, on))
    with claimed(folder, ran, fresh=False, platform=on, keeps=chief is None, copy_secs=COPY_SECS) as run_folder:
        if chief is not None:
            save_logs(platform, name, members, run_folder)
        copied = copy_results(platform, job, run_folder.path, math.inf)
        if copied is not None and copied.has_more_than(run_folder.path):
            # A later attempt that trains, or left no report, may have deleted the checkpoint that the report names.
            newest = standing(copied.report, run_folder.path)
            _publish(validated(newest, run_folder.path), run_folder.path)
        return Fetched(earlier_report(run_folder.path), is_running=chief is not None)


def _job_that_ran(folder: Path, name: str, on: str, job: Job | None) -> Job:
    """The job that a run has trained: that of its folder, or else of the job file, which may have been edited."""
    if job is None:
        return _job_of(folder, name)
    with suppress(UsageError):
        return _job_of(folder, name) if owner(folder) == Owner(name, on) else job
    return job


def _job_of(folder: Path, name: str) -> Job:
    """The job in a run folder.

    Raises:
        UsageError: It has none of this name.
    """
    path = RunFolder(folder).job
    try:
        job = job_from_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, BadJobError) as error:
        raise UsageError(
            f"fleet {name} is down and {path} does not describe it ({error}): expected its job file, which names the "
            "image that reads its results"
        ) from error
    if job.name != name:
        raise UsageError(f"{path} is of job {job.name}: expected the job file of {name}, or another folder")
    return job


def _is_of_last_process(report: Report, chief: Member) -> bool:
    """Whether a report is that of the chief's last process, or of a permanent failure after which it was restarted."""
    if not chief.is_over:
        return report.exit_code in PERMANENT_CODES
    return report.exit_code == chief.exit_code or (report.exit_code in PERMANENT_CODES and chief.has_failed)


def unreported(job: Job, folder: RunFolder, members: Sequence[Member], gone: Member | None, start: Start) -> Report:
    """The report of an attempt whose chief left none.

    Args:
        gone: The member whose loss ended the run, if one did.
        start: Of the attempt.
    """
    code, error = _cause(members, folder, gone)
    checkpoint = newest_checkpoint(folder.path)
    seconds = max(0.0, time.time() - start.started) if start.is_watched else 0.0
    events = EventLog(folder.path / EventLog.FILE_NAME).readable()
    report = Report(
        status="stopped" if code in STOPPED else "failed",
        exit_code=code,
        error=error,
        name=job.name,
        run=start.run,
        mode=job.update.mode,
        target_step=job.train.steps,
        final_step=checkpoint.step if checkpoint is not None else 0,
        checkpoint=checkpoint,
        seconds=seconds,
        events=[event for event in events if event.time >= start.started],
    )
    return with_attempt(report, start.started, start.first_step, start.changes)


def with_failure(report: Report, gone: Member | None) -> Report:
    """Names the member whose loss ended the run as the cause, in the report of a chief that was stopped for it."""
    if report.exit_code not in STOPPED or gone is None:
        return report
    error = f"{gone.name}: {gone.cause}, and was not started again"
    return with_end(report, "failed", _code(gone), error)


def _cause(members: Sequence[Member], folder: RunFolder, gone: Member | None) -> tuple[int, str]:
    """Exit code and message of a run without a report.

    They are those of its first permanent failure, or of the member whose loss ended it, or else of the chief.
    """
    training = [member for member in members if member.role in TRAINING]
    chief = chief_of(training)
    permanent = next((m for m in training if m.ends_run), None)
    lost = gone if gone is not None and gone.role != "chief" else None
    failed = permanent or lost or (chief if chief is not None and chief.exit_code is not None else None)
    failed = failed or next((m for m in training if m.has_failed and m.is_over), None)
    code = failed.exit_code if failed is not None else None
    if failed is None or not code:
        return errors.BUG, "the chief left no report"
    if code in STOPPED:
        return code, f"stopped by {signal.Signals(code - errors.SIGNAL_BASE).name}"
    first = first_failure(folder.path, code)
    return _code(failed), first if first is not None else f"{failed.name}: {failed.cause}"


def _code(member: Member) -> int:
    """The exit code of a run that ends because of a member; a killed one is a lost peer."""
    code = member.exit_code or errors.BUG
    return errors.LOST_PEERS if code > errors.SIGNAL_BASE else code
