"""`--fresh` with a store: deletes as the only owner of the prefix."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save

from psfleet.checkpoint import stored_run
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.store_lease import StoreLease
from psfleet.checkpoint.stored_run import delete_stored
from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job

CALL_SECS = 20.0


def job(bucket: StoreFolder) -> Job:
    return parse_job(
        {
            "name": "stored",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 2},
            "checkpoint": {"store": str(bucket / "run")},
        }
    )


def test_fresh_deletes_nothing_of_a_fleet_that_trains(bucket: StoreFolder, tmp_path: Path) -> None:
    root = bucket / "run" / "checkpoints"
    kept = save(root, 3)  # type: ignore[arg-type]
    trains = StoreLease(bucket / "run", "another", "host")
    assert trains.try_acquire()
    with pytest.MonkeyPatch.context() as patch:
        # It renews its lease between two looks.
        patch.setattr(StoreLease, "_free_number", renewing(trains, StoreLease._free_number))
        with pytest.raises(BadJobError, match="another fleet trains on"):
            delete_stored(job(bucket), tmp_path)
    assert newest(root) == kept
    trains.release()
    delete_stored(job(bucket), tmp_path)
    assert newest(root) is None


def renewing(lease: StoreLease, read: Any) -> Any:
    """A method that reads the owner, after which it renews its lease."""

    def read_and_renew(self: StoreLease) -> Any:
        found = read(self)
        lease.renew()
        return found

    return read_and_renew


def test_of_two_that_delete_at_a_time_the_second_one_waits_and_so_does_a_fleet(
    bucket: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the later one deletes checkpoints that the fleet of the first one has written meanwhile."""
    save(bucket / "run" / "checkpoints", 3)  # type: ignore[arg-type]
    deletes, may_end, second_waits = threading.Event(), threading.Event(), threading.Event()
    deleted_by: list[str] = []
    delete, try_acquire = stored_run.delete, StoreLease.try_acquire

    def slow_delete(folder: Any) -> None:
        deleted_by.append(threading.current_thread().name)
        deletes.set()
        assert may_end.wait(CALL_SECS)
        delete(folder)

    def watched(lease: StoreLease) -> bool:
        is_acquired = try_acquire(lease)
        if not is_acquired and threading.current_thread().name == "second":
            second_waits.set()
        return is_acquired

    monkeypatch.setattr(stored_run, "delete", slow_delete)
    monkeypatch.setattr(stored_run, "LOOK_SECS", 0.05)
    monkeypatch.setattr(StoreLease, "try_acquire", watched)
    threads = [
        threading.Thread(target=delete_stored, args=(job(bucket), tmp_path / name), name=name)
        for name in ("first", "second")
    ]
    threads[0].start()
    assert deletes.wait(CALL_SECS)
    threads[1].start()
    assert second_waits.wait(CALL_SECS)
    assert not StoreLease(bucket / "run", "a fleet", "host").try_acquire()
    may_end.set()
    for thread in threads:
        thread.join(CALL_SECS)
        assert not thread.is_alive()
    assert deleted_by == ["first"]
    assert StoreLease(bucket / "run", "a fleet", "host").try_acquire()
