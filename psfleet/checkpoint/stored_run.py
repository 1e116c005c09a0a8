"""Rules for runs with checkpoints in a store, which has no locks and no renames: jobs, generations, late commits."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psfleet.checkpoint.location import CHECKPOINTS, REPORT, STORE_FLEET, Folder, bad_store, require_usable
from psfleet.checkpoint.manifest import MANIFEST, Checkpoint, abandon
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store import delete, folders, newest, step_and_generation
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.store_lease import LEASE_SECS, LOOK_SECS, StoreLease
from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.polling import wait_until


def require_job(checkpoint: Checkpoint, job: Job) -> None:
    """Refuses to continue the run of another job: unlike a run folder, a store has no owner.

    Raises:
        BadJobError: The checkpoint is in a store, and of a job with another name.
    """
    name = (checkpoint.job or {}).get("name", job.name)
    if isinstance(checkpoint.folder, StoreFolder) and name != job.name:
        raise BadJobError(
            f"checkpoint.store: {checkpoint.folder} is of job {name}, expected another prefix for job {job.name}, or "
            "--fresh to delete the checkpoints there"
        )


def newest_settled(root: Folder) -> Checkpoint | None:
    """As `newest`; in a store it also abandons all later checkpoints that are not committed yet.

    A chief that was frozen, or the thread that commits, can otherwise commit one of them later. The report counts its
    steps as lost, and later recoveries would prefer it to checkpoints of the steps that were made instead.
    """
    while True:
        found = newest(root)
        if found is None or not isinstance(root, StoreFolder):
            return found
        later = [folder for folder in folders(root) if step_and_generation(folder) > (found.step, found.generation)]
        if all(_settled(folder) for folder in later):
            return found


def _settled(folder: Folder) -> bool:
    """Abandons a checkpoint that is not committed; False if it was committed in this moment."""
    assert isinstance(folder, StoreFolder), "it is in a store"
    return (folder / MANIFEST).is_file() or abandon(folder)


def next_generation(root: Folder, least: int) -> int:
    """A generation, at least `least`, of which a store has no checkpoint, not even an invalid one.

    A manifest in a store is never replaced, so none of the steps of a new generation may have one. On a disk a new
    checkpoint replaces an old one.
    """
    if not isinstance(root, StoreFolder):
        return least
    return max([least, *[1 + step_and_generation(folder)[1] for folder in folders(root)]])


def fleet_of(out: Path) -> str:
    """The identifier of all fleets with this run folder: one at a time, so each takes over from the one before."""
    path = out / STORE_FLEET
    with suppress(OSError):
        # Empty if a process was killed while it wrote it.
        if known := path.read_text(encoding="ascii"):
            return known
    fleet = secrets.token_hex(8)
    with suppress(OSError):
        path.write_text(fleet, encoding="ascii")
    return fleet


def delete_stored(job: Job, out: Path | None = None) -> None:
    """Deletes the checkpoints of earlier runs from the store of a job, and the copy of their report; nothing else.

    It has the lease on the prefix meanwhile: a fleet that starts there, or another call, waits for its end.

    Args:
        out: The run folder; None: it is on a platform. A fleet of another one that did not end in order must have been
            silent for `LEASE_SECS`.

    Raises:
        BadJobError: The store may not be used, or a fleet trains there.
        StoreError: It does not answer.
    """
    if job.checkpoint.store is None:
        return
    require_usable(job)
    store = StoreFolder(job.checkpoint.store)
    lease = StoreLease(store, secrets.token_hex(8) if out is None else fleet_of(out), socket.gethostname())
    try:
        with _leased(lease):
            (store / REPORT).unlink(missing_ok=True)
            # The newest last: after a crash, what is left is what a run resumes from.
            for folder in reversed(folders(store / CHECKPOINTS)):
                lease.keep()
                delete(folder)
    except StoreError as error:
        raise bad_store(error) if error.is_denied else error from error


@contextmanager
def _leased(lease: StoreLease) -> Iterator[None]:
    """Context manager that has a lease; raises as `delete_stored`."""
    what = f"{lease.store}, which a fleet has left that did not end in order"
    wait_until(lease.try_acquire, 2 * LEASE_SECS, what, poll_secs=LOOK_SECS)
    try:
        yield
    finally:
        # Otherwise the next fleet waits for the end of the lease.
        with suppress(StoreError):
            lease.release()
