"""The copy of a run's report in the store that has its checkpoints, for a run folder that is new."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from psfleet.checkpoint.location import REPORT
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import PsfleetError
from psfleet.job.job import Job
from psfleet.report.schema import Report
from worker_service.chief.storage import Storage

logger = logging.getLogger("psfleet.chief")


def save(out: Path, job: Job, storage: Storage, require_lease: Callable[[], None] = lambda: None) -> None:
    """Copies the report of a run folder to the store of its job, if it has one; a failure of that is an event.

    Args:
        require_lease: Raises StoreError if another fleet may have the store, whose report stays.
    """
    if job.checkpoint.store is None:
        return
    with storage.writing("the copy of the report in the store"):
        require_lease()
        (StoreFolder(job.checkpoint.store) / REPORT).write_bytes((out / Report.FILE_NAME).read_bytes())


def fetch(out: Path, job: Job) -> None:
    """Copies the report of earlier attempts from the store to a run folder that has none: a report is of all attempts.

    The file gets a time long ago, by which a launcher sees that it is not of this attempt.
    """
    if job.checkpoint.store is None or (out / Report.FILE_NAME).exists():
        return
    try:
        report = Report.model_validate_json((StoreFolder(job.checkpoint.store) / REPORT).read_bytes())
        if report.name == job.name:
            os.utime(report.write(out), (0.0, 0.0))
    except FileNotFoundError:
        return
    except (PsfleetError, OSError, ValidationError) as error:
        logger.warning("the attempts before this one are not known: %s", error)
