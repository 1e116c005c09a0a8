"""Publishes the report of a run: in its run folder, and in the store of its job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from psfleet.job.job import Job
from psfleet.report import html
from psfleet.report.schema import Report
from worker_service.chief import stored_report
from worker_service.chief.storage import Storage


def publish(
    report: Report,
    out: Path,
    job: Job,
    storage: Storage,
    require_lease: Callable[[], None] = lambda: None,
    *,
    is_required: bool,
) -> None:
    """Writes the report to the run folder, and copies it to the store of the job, if it has one.

    Args:
        require_lease: See `stored_report.save`.
        is_required: Whether the run cannot end well without the report in its folder: it is then written again and
            again. Else a failure is an event.

    Raises:
        StorageError: A report that is required cannot be written for `deadlines.stall_secs`.
    """
    if is_required:
        storage.insist("the report", lambda: html.publish(report, out))
    else:
        with storage.writing("the report"):
            html.publish(report, out)
    stored_report.save(out, job, storage, require_lease)
