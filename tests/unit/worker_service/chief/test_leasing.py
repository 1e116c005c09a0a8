"""The chief's lease on its store: who gets it at once, who is refused, and how a run ends that has lost it."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, sample_job, sample_storage, shard_state, stored_job, with_parts
from support.s3_server import BROKEN, S3Server

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.store_lease import LEASE_SECS, StoreLease
from psfleet.checkpoint.stored_run import fleet_of
from psfleet.control import control_pb2 as pb
from psfleet.errors import BAD_JOB, BadJobError, LostPeerError, StoppedError, StorageError
from psfleet.job.job import Job
from psfleet.service.process import Stop
from worker_service.chief import leasing
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.events import Events
from worker_service.chief.leasing import keep
from worker_service.chief.recovery import Recovery

WAIT_SECS = 20.0


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that tests can wait for."""
    monkeypatch.setattr(leasing, "LOOK_SECS", 0.05)
    monkeypatch.setattr(leasing, "RENEW_SECS", 0.05)


def job_of(bucket: StoreFolder) -> Job:
    return stored_job(bucket, deadlines={"stall_secs": 1})


def lease_of(out: Path, bucket: StoreFolder, stop: Stop) -> object:
    """Enters the lease of a chief with a run folder, and leaves it at once."""
    with leasing.leasing(out, job_of(bucket), 0, stop, lambda outcome: None) as lease:
        assert lease is not None
        lease.require()
        return lease


def test_a_run_without_a_store_and_another_worker_need_no_lease(
    tmp_path: Path, bucket: StoreFolder, stop: Stop
) -> None:
    for index, job in [(0, sample_job()), (1, job_of(bucket))]:
        with leasing.leasing(tmp_path, job, index, stop, lambda outcome: None) as lease:
            assert lease is None


def test_the_next_fleet_starts_at_once_after_one_that_ended_in_order(
    tmp_path: Path, bucket: StoreFolder, stop: Stop
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lease_of(tmp_path / name, bucket, stop)


def test_a_fleet_with_the_same_run_folder_takes_over_at_once(tmp_path: Path, bucket: StoreFolder, stop: Stop) -> None:
    killed = StoreLease(bucket / "run", fleet_of(tmp_path), "killed")
    assert killed.try_acquire()
    lease_of(tmp_path, bucket, stop)


def test_a_second_fleet_is_refused_while_the_first_trains(tmp_path: Path, bucket: StoreFolder, stop: Stop) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        leasing.leasing(tmp_path / "a", job_of(bucket), 0, stop, lambda outcome: None),
        pytest.raises(BadJobError, match="another fleet trains on"),
    ):
        lease_of(tmp_path / "b", bucket, stop)


def test_a_signal_ends_the_wait_for_a_lease(tmp_path: Path, bucket: StoreFolder, stop: Stop) -> None:
    assert StoreLease(bucket / "run", "gone", "host").try_acquire()
    stop.signal_number = 15
    stop.event.set()
    with pytest.raises(StoppedError):
        lease_of(tmp_path, bucket, stop)


def test_a_store_that_does_not_answer_is_waited_for_and_named_once(
    s3: S3Server,
    tmp_path: Path,
    bucket: StoreFolder,
    stop: Stop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(leasing, "LEASE_SECS", 0.0)
    s3.fault = lambda method, path: BROKEN
    expected = pytest.raises(StorageError, match=r"no lease on s3://.* encountered an internal error")
    with caplog.at_level(logging.INFO, "psfleet.chief"), expected:
        lease_of(tmp_path, bucket, stop)
    said = [record for record in caplog.records if "waiting for the store" in record.message]
    assert [getattr(record, "event", "") for record in said] == ["starting"], "it is shown, and once"


def test_a_run_whose_prefix_was_taken_ends_and_commits_nothing(tmp_path: Path, bucket: StoreFolder) -> None:
    now = 0.0
    own = StoreLease(bucket / "run", "own", "own-host", lambda: now)
    assert own.try_acquire()
    other = StoreLease(bucket / "run", "other", "other-host", lambda: now)
    assert not other.try_acquire()
    now = 60.0
    assert other.try_acquire()
    outcomes: list[pb.Outcome] = []
    keep(own, threading.Event(), outcomes.append)
    assert [(outcome.exit_code, "whose chief is on other-host" in outcome.message) for outcome in outcomes] == [
        (BAD_JOB, True)
    ]
    job = job_of(bucket)
    saved = save(bucket / "run" / "checkpoints", 40)
    (saved.folder / "manifest.json").unlink()
    context = replace(sample_context(tmp_path, job=job), lease=own)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    committer.update([with_parts(shard_state(41), shard, saved) for shard in range(2)])
    assert committer.newest is None
    assert "other-host" in committer.cause


def test_a_chief_that_may_have_lost_the_prefix_deletes_no_checkpoint(tmp_path: Path, bucket: StoreFolder) -> None:
    now = 0.0
    lease = StoreLease(bucket / "run", "own", "host", lambda: now)
    assert lease.try_acquire()
    root = bucket / "run" / "checkpoints"
    for step in (20, 40):
        save(root, step)
    job = sample_job(checkpoint={"store": f"{bucket}/run", "keep": 1})
    context = replace(sample_context(tmp_path, job=job), lease=lease)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    now = LEASE_SECS
    committer.prune()
    assert len(root.iterdir()) == 2
    lease.renew()
    committer.prune()
    assert [folder.name for folder in root.iterdir()] == ["00000040-g1"]


def test_a_chief_that_may_have_lost_the_prefix_restores_nothing_and_abandons_nothing(
    tmp_path: Path, bucket: StoreFolder
) -> None:
    """A recovery would keep the checkpoint that the other fleet is about to commit from being one."""
    now = 0.0
    lease = StoreLease(bucket / "run", "own", "host", lambda: now)
    assert lease.try_acquire()
    save(bucket / "run" / "checkpoints", 20)
    begun = save(bucket / "run" / "checkpoints", 40)
    (begun.folder / "manifest.json").unlink()
    now = LEASE_SECS
    states = [pb.ShardState(run="run", phase=pb.EMPTY)] * 2
    ps = [Ps(state) for state in states]
    context = replace(sample_context(tmp_path, ps, job_of(bucket)), lease=lease)
    with pytest.raises(LostPeerError, match="the lease on the prefix was not renewed"):
        Recovery(context, lambda: {}, {}, Events(tmp_path, context.job)).recover(states, 0)
    assert [folder for one in ps for folder in one.configured] == []
    assert not (begun.folder / "manifest.json").exists()


def test_a_newer_chief_of_the_same_fleet_does_not_end_the_run(bucket: StoreFolder) -> None:
    older, newer = (StoreLease(bucket / "run", "own", "host") for _ in range(2))
    assert older.try_acquire()
    assert newer.try_acquire()
    outcomes: list[pb.Outcome] = []
    keep(older, threading.Event(), outcomes.append)
    assert outcomes == []
    with pytest.raises(StoreError):
        older.require()
