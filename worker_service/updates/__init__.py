"""A worker's part in updates: one module for each mode, the counterpart of `ps_service.updates`."""

from __future__ import annotations

from psfleet.job.job import Job
from worker_service.updates.asynchronous import AsyncPart
from worker_service.updates.averaging import AveragingPart
from worker_service.updates.interface import UpdatePart
from worker_service.updates.ssp import SspPart
from worker_service.updates.sync import SyncPart

__all__ = ["AsyncPart", "AveragingPart", "SspPart", "SyncPart", "UpdatePart", "update_part"]


def update_part(job: Job) -> UpdatePart:
    """The worker's part in the job's mode."""
    match job.update.mode:
        case "async":
            return AsyncPart()
        case "averaging":
            return AveragingPart(job)
        case "ssp":
            return SspPart()
        case _:
            return SyncPart()
