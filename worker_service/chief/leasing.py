"""The chief's lease on the prefix of its store: taken before it reads there, and renewed while it leads the run."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psfleet.checkpoint.location import bad_store, require_not_refused
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.store_lease import LEASE_SECS, LOOK_SECS, RENEW_SECS, StoreLease
from psfleet.checkpoint.stored_run import fleet_of
from psfleet.control import control_pb2 as pb
from psfleet.errors import BAD_JOB, PsfleetError, StorageError
from psfleet.job.job import Job
from psfleet.polling import run_within
from psfleet.service.process import Stop

logger = logging.getLogger("psfleet.chief")

RELEASE_SECS = 5.0
"""How long the end of a run may wait for a store; the next fleet waits for the end of the lease otherwise."""

Finish = Callable[[pb.Outcome], object]


@contextmanager
def leasing(out: Path, job: Job, index: int, stop: Stop, finish: Finish) -> Iterator[StoreLease | None]:
    """Context manager that has the lease on the prefix of the job's store; yields None if there is nothing to lease.

    Args:
        out: The run folder.
        index: Of this worker; only worker 0 leads a run.
        stop: Ends the wait for another fleet's lease.
        finish: Ends the run on every ps: another fleet has the prefix, since this process was frozen or cut off.

    Raises:
        BadJobError: Another fleet trains there, or the store may not be used.
        StorageError: The store does not answer for `deadlines.stall_secs`.
        StoppedError: A signal came.
    """
    if job.checkpoint.store is None or index:
        yield None
        return
    require_not_refused(job)
    lease = StoreLease(StoreFolder(job.checkpoint.store), fleet_of(out), socket.gethostname())
    acquire(lease, job, stop)
    is_over = threading.Event()
    thread = threading.Thread(target=keep, args=(lease, is_over, finish), name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        is_over.set()
        thread.join(RENEW_SECS)
        with suppress(StoreError, TimeoutError):
            run_within(RELEASE_SECS, lease.release)


def acquire(lease: StoreLease, job: Job, stop: Stop) -> None:
    """Waits for the lease, and logs once for each reason what it waits for; see `leasing`."""
    deadline = time.monotonic() + LEASE_SECS + job.deadlines.stall_secs
    left = (
        f"a fleet that did not end in order has left {lease.store}: waiting for {LEASE_SECS:g} s to see that it is gone"
    )
    said = ""
    while True:
        try:
            if lease.try_acquire():
                return
            reason = left
        except StoreError as error:
            if error.is_denied:
                raise bad_store(error) from error
            reason = f"waiting for the store: {error}"
        if reason != said:
            logger.info("%s", reason, extra={"event": "starting"})
            said = reason
        if time.monotonic() >= deadline:
            raise StorageError(f"checkpoint.store: no lease on {lease.store}: {reason}")
        if stop.event.wait(LOOK_SECS):
            raise stop.error()


def keep(lease: StoreLease, is_over: threading.Event, finish: Finish) -> None:
    """Renews a lease until `is_over`; if another fleet has taken it, ends the run.

    A newer chief of the same fleet needs nothing: the ps refuse the older one.
    """
    while not is_over.wait(RENEW_SECS):
        try:
            lease.renew()
        except StoreError as error:
            logger.warning("the lease on the prefix is not renewed: %s", error)
        if lease.taken_by is None:
            continue
        if not lease.is_of_fleet(lease.taken_by):
            message = (
                f"checkpoint.store: another fleet, whose chief is on {lease.taken_by.host}, has taken {lease.store}: "
                f"this one did not renew its lease for {LEASE_SECS:g} s"
            )
            logger.error("%s", message, extra={"exit_code": BAD_JOB})
            with suppress(PsfleetError):
                finish(pb.Outcome(exit_code=BAD_JOB, message=message))
        return
