"""Recognizes the folder of a run that is done, or has more steps than its job wants: no process is started for it."""

from __future__ import annotations

from pathlib import Path

from psfleet.checkpoint import store
from psfleet.checkpoint.location import parse, root_of
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import DONE, PsfleetError
from psfleet.job.differences import is_same
from psfleet.job.job import Job
from psfleet.job.program_files import PROGRAM_DIGEST, digest, job_files
from psfleet.report.attempts import earlier_report
from psfleet.report.last_evaluation import lacks_last
from psfleet.report.schema import Report
from psfleet.run_folder import LOCAL, Owner, is_locked, owner


def finished_report(folder: Path, job: Job, program_folder: Path) -> Report | None:
    """The report of a run that is done, if the same job and program would find nothing to do; changes nothing.

    Its final checkpoint is read and verified. In any doubt the fleet decides, which checks the model, too.

    Args:
        folder: The run folder; may be missing.
        job: As it would be started, resolved.
        program_folder: Of the program.
    """
    try:
        if owner(folder) != Owner(job.name, LOCAL) or is_locked(folder):
            return None
        report = earlier_report(folder)
        if report is None or not _is_done(report, job):
            return None
        checkpoint = store.newest(root_of(folder, job))
        if checkpoint is None or not _is_of_report(checkpoint, report):
            return None
        return report.located(folder.resolve()) if _is_unchanged(checkpoint, job, program_folder) else None
    except (PsfleetError, OSError):
        return None


def require_steps_left(folder: Path, job: Job) -> None:
    """Refuses a job that ends before the newest checkpoint of its run; in any doubt the fleet decides.

    Args:
        folder: The run folder; may be missing.
        job: As it would be started, resolved.

    Raises:
        BadJobError: As the chief raises it, after the start of all processes.
    """
    root = root_of(folder.resolve(), job)
    try:
        if owner(folder) != Owner(job.name, LOCAL) or is_locked(folder):
            return
        # The parts, which may be large, are read only for a refusal.
        found = store.newest_committed(root)
        if found is not None and found.step > job.train.steps:
            found = store.newest(root)
    except (PsfleetError, OSError):
        return
    if found is not None:
        store.require_within(found, job.train.steps)


def _is_done(report: Report, job: Job) -> bool:
    """Whether a report says that the job's last step was made, and that nothing is missing after it."""
    is_whole = report.stopped_early is None and not lacks_last(report)
    is_whole = is_whole and (report.best is None or parse(report.best.path).is_dir())
    return (report.status, report.exit_code, report.final_step) == ("done", DONE, job.train.steps) and is_whole


def _is_of_report(checkpoint: Checkpoint, report: Report) -> bool:
    """Whether a checkpoint is the last one of the run of a report."""
    named = report.checkpoint
    return named is not None and (named.step, parse(named.path).name) == (report.final_step, checkpoint.folder.name)


def _is_unchanged(checkpoint: Checkpoint, job: Job, program_folder: Path) -> bool:
    """Whether the checkpoint was trained by this job and by this program."""
    program = digest(job_files(job, program_folder))
    is_same_job = checkpoint.job is not None and is_same(checkpoint.job, job)
    return is_same_job and program != "" and program == checkpoint.extra.get(PROGRAM_DIGEST)
