"""The results of a run that was followed to its end, even if its fleet was removed before they were copied."""

from __future__ import annotations

from pathlib import Path

from psfleet.errors import LostPeerError, UsageError
from psfleet.job.job import Job
from psfleet.launch.platform import Platform, chief_of
from psfleet.launch.results import collect, fetch
from psfleet.launch.watcher import TakenDownError
from psfleet.report.schema import Report


def collect_followed(platform: Platform, job: Job, folder: Path, on: str, created: float) -> Report:
    """As `collect`; of a fleet that was removed meanwhile, by another user or machine, only the logs are lost.

    Args:
        created: When this start of the fleet was created, in seconds since 1970.

    Raises:
        TakenDownError: The fleet was removed, and its chief left no report.
    """
    try:
        return collect(platform, job.name, folder, on)
    except (UsageError, LostPeerError):
        if chief_of(platform.members(job.name)) is not None:
            raise
    report = fetch(platform, job.name, job, folder, on).report
    # Some platforms round times down to seconds.
    if report is None or not report.attempts or report.attempts[-1].started < created - 1:
        raise TakenDownError(job.name)
    return report
