"""What the chief does with a store: what it does not give is waited for, and nothing is lost by its failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import random_values, save
from support.chief_samples import Ps, sample_context, sample_storage, shard_state, stored_job, stored_root, with_parts
from support.report_samples import DONE
from support.s3_server import BROKEN, DENIED, S3Server

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.store_lease import LEASE_SECS, StoreLease
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, DeadlineError, NoCheckpointError, ReplacedError, StorageError, StoreAwayError
from psfleet.polling import run_within, wait_until
from psfleet.report.schema import Report
from worker_service.chief import last_checkpoint, stored_report
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.commit_thread import CommitThread
from worker_service.chief.disk import Disk
from worker_service.chief.events import Events
from worker_service.chief.last_checkpoint import LastCheckpoint
from worker_service.chief.recovery import Recovery
from worker_service.chief.storage import Storage

EMPTY = pb.ShardState(run="run", phase=pb.EMPTY)
WAIT_SECS = 10.0


def recover(bucket: StoreFolder, out: Path, states: Sequence[Any] = (EMPTY, EMPTY)) -> list[str]:
    """Recovers a fleet; returns the checkpoint folders that the ps restored."""
    ps = [Ps(state) for state in states]
    context = sample_context(out, ps, stored_job(bucket))
    Recovery(context, lambda: random_values(1), {}, Events(out, context.job)).recover(list(states), 0)
    return [folder for one in ps for folder in one.configured]


def test_a_new_run_starts_from_step_0_in_the_store(bucket: StoreFolder, tmp_path: Path) -> None:
    assert recover(bucket, tmp_path) == [f"{stored_root(bucket)}/00000000-g1"] * 2
    assert not (tmp_path / "checkpoints").exists()


def test_a_new_run_folder_resumes_from_the_store(bucket: StoreFolder, tmp_path: Path) -> None:
    save(stored_root(bucket), 40)
    assert recover(bucket, tmp_path) == [f"{stored_root(bucket)}/00000040-g1"] * 2


def test_an_initial_checkpoint_that_a_dead_chief_has_begun_is_written_anew(bucket: StoreFolder, tmp_path: Path) -> None:
    begun = save(stored_root(bucket), 0)
    (begun.folder / "manifest.json").unlink()
    assert recover(bucket, tmp_path) == [f"{stored_root(bucket)}/00000000-g2"] * 2


def test_a_store_whose_checkpoints_are_all_invalid_is_an_error(bucket: StoreFolder, tmp_path: Path) -> None:
    uncommitted(bucket)
    with pytest.raises(NoCheckpointError, match="none of the 1 checkpoints"):
        recover(bucket, tmp_path)


def test_a_store_that_may_not_be_written_is_a_bad_job(s3: S3Server, bucket: StoreFolder, tmp_path: Path) -> None:
    s3.fault = lambda method, path: DENIED if method == "PUT" else None
    with pytest.raises(BadJobError, match=r"checkpoint.store: .*expected .*credentials"):
        recover(bucket, tmp_path)


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_store_that_fails_is_waited_for(s3: S3Server, bucket: StoreFolder, tmp_path: Path, method: str) -> None:
    save(stored_root(bucket), 40) if method == "GET" else None
    s3.fault = lambda each, path: BROKEN if each == method else None
    with pytest.raises(StoreAwayError, match="s3://"):
        recover(bucket, tmp_path)


def test_the_run_of_another_job_is_refused(bucket: StoreFolder, tmp_path: Path) -> None:
    save(stored_root(bucket), 40, extra={"job": {"name": "another"}})
    with pytest.raises(BadJobError, match=r"is of job another"):
        recover(bucket, tmp_path)


def uncommitted(bucket: StoreFolder) -> Checkpoint:
    saved = save(stored_root(bucket), 40)
    (saved.folder / "manifest.json").unlink()
    return saved


def test_the_chief_commits_what_the_ps_have_written(s3: S3Server, bucket: StoreFolder, tmp_path: Path) -> None:
    saved = uncommitted(bucket)
    context = sample_context(tmp_path, job=stored_job(bucket))
    events = Events(tmp_path, context.job)
    committer = CheckpointCommitter(context, {}, Storage(events, 1.0))
    states = [with_parts(shard_state(41), shard, saved) for shard in range(2)]
    s3.fault = lambda method, path: DENIED if method == "PUT" and path.endswith("manifest.json") else None
    committer.update(states)
    assert committer.newest is None
    assert [event.kind for event in events.all()] == ["checkpoint_failed"]
    s3.fault = lambda method, path: None
    committer.update(states)
    assert committer.newest is not None
    assert committer.newest.step == 40


def test_a_heartbeat_does_not_wait_for_a_commit() -> None:
    released, committed = threading.Event(), threading.Semaphore(0)
    seen: list[Any] = []

    def commit(states: Any) -> None:
        seen.append(states)
        committed.release()
        released.wait(WAIT_SECS)

    thread = CommitThread(commit, incarnation=1, is_beside=True)
    run_within(WAIT_SECS, lambda: thread.update([]))
    assert committed.acquire(timeout=WAIT_SECS)
    run_within(WAIT_SECS, lambda: thread.update([]))
    assert len(seen) == 1, "one commit at a time"
    released.set()
    wait_until(lambda: thread.update([]) or len(seen) > 1, WAIT_SECS, "the next commit")


def test_a_commit_that_fails_is_logged_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []

    def commit(states: Any) -> None:
        calls.append(states)
        raise StorageError("the store is away")

    thread = CommitThread(commit, incarnation=1, is_beside=True)
    with caplog.at_level(logging.ERROR):
        wait_until(lambda: thread.update([]) or len(calls) > 1, WAIT_SECS, "the second commit")
    assert "the store is away" in caplog.text


def test_a_bug_in_a_commit_is_raised_by_the_next_heartbeat() -> None:
    """Nothing would be committed any more, and nobody would see why."""

    def commit(states: Any) -> None:
        raise KeyError("no such part")

    thread = CommitThread(commit, incarnation=1, is_beside=True)
    with pytest.raises(KeyError):
        wait_until(lambda: thread.update([]), WAIT_SECS, "the error")


def test_a_chief_that_was_replaced_commits_nothing() -> None:
    state = shard_state(41)
    state.workers.add(index=0, incarnation=2)
    thread = CommitThread(lambda states: pytest.fail("committed"), incarnation=1, is_beside=True)
    with pytest.raises(ReplacedError):
        thread.update([state])


def test_the_last_checkpoint_is_verified_once_the_store_gives_it(
    s3: S3Server, bucket: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_checkpoint, "RETRY_SECS", 0.01)
    saved, failures = save(stored_root(bucket), 40), [BROKEN] * 3
    unused: Any = None
    last = LastCheckpoint(sample_context(tmp_path, job=stored_job(bucket)), unused, Disk(), secs=WAIT_SECS)
    monkeypatch.setattr(last, "_await_last", lambda generation, is_moved: saved)
    s3.fault = lambda method, path: failures.pop() if failures else None
    assert last.commit(1) == saved
    s3.fault = lambda method, path: BROKEN
    impatient = LastCheckpoint(sample_context(tmp_path, job=stored_job(bucket)), unused, Disk(), secs=0.1)
    monkeypatch.setattr(impatient, "_await_last", lambda generation, is_moved: saved)
    with pytest.raises(DeadlineError, match=str(saved.folder)):
        impatient.commit(1)


def test_the_report_of_earlier_attempts_comes_from_the_store(bucket: StoreFolder, tmp_path: Path) -> None:
    job = stored_job(bucket)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    report = DONE.model_copy(update={"name": job.name})
    report.write(first)
    stored_report.save(first, job, sample_storage(sample_context(first)))
    stored_report.fetch(second, job)
    assert Report.read(second) == report == Report.read(f"{bucket}/run")
    assert (second / Report.FILE_NAME).stat().st_mtime == 0, "a launcher would take it for that of this attempt"
    (second / Report.FILE_NAME).write_text("{}")
    stored_report.fetch(second, job)
    assert (second / Report.FILE_NAME).read_text() == "{}", "the folder's own report stays"


def test_the_report_of_a_fleet_that_has_the_store_now_stays(bucket: StoreFolder, tmp_path: Path) -> None:
    job, events = stored_job(bucket), Events(tmp_path, stored_job(bucket))
    now = 0.0
    lost, present = (StoreLease(bucket / "run", name, name, lambda: now) for name in ("lost", "present"))
    assert lost.try_acquire()
    assert not present.try_acquire()
    now = LEASE_SECS
    assert present.try_acquire()
    (bucket / "run" / "report.json").write_bytes(b"of the present fleet")
    DONE.write(tmp_path)
    stored_report.save(tmp_path, job, Storage(events, 1.0), lost.require)
    assert (bucket / "run" / "report.json").read_bytes() == b"of the present fleet"
    assert ["the lease on the prefix was not renewed" in event.cause for event in events.all()] == [True]
    stored_report.save(tmp_path, job, Storage(events, 1.0), present.require)
    assert Report.read(f"{bucket}/run") == DONE


def test_a_copy_of_the_report_that_fails_is_an_event(s3: S3Server, bucket: StoreFolder, tmp_path: Path) -> None:
    job = stored_job(bucket)
    DONE.write(tmp_path)
    events = Events(tmp_path, job)
    s3.fault = lambda method, path: BROKEN
    stored_report.save(tmp_path, job, Storage(events, 1.0))
    assert ["the copy of the report in the store" in event.cause for event in events.all()] == [True]
    (tmp_path / "new").mkdir()
    stored_report.fetch(tmp_path / "new", job)
    assert not (tmp_path / "new" / Report.FILE_NAME).exists()


def test_a_checkpoint_that_takes_long_is_no_store_that_hangs(bucket: StoreFolder) -> None:
    """The connections belong to another thread: the kernel counts nothing for the one that reads."""
    now = [0.0]
    disk, steps = Disk(lambda: now[0]), threading.Semaphore(0)
    read = threading.Semaphore(0)
    (bucket / "part").write_bytes(b"." * 100)

    def reader() -> None:
        with disk.reading(bucket / "part"):
            while steps.acquire(timeout=WAIT_SECS):
                (bucket / "part").read_bytes()
                read.release()

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    for _ in range(3):
        steps.release()
        assert read.acquire(timeout=WAIT_SECS)
        assert disk.stuck(1.0) == ""
        now[0] += 0.9
    assert disk.stuck(1.0) == ""
    now[0] += 1.1
    assert disk.stuck(1.0) == f"the store has not answered for 1 s to a read of {bucket}/part"


def test_a_checkpoint_that_a_recovery_went_behind_is_never_committed(bucket: StoreFolder, tmp_path: Path) -> None:
    """The chief has seen all parts of step 40; the fleet restores step 20 before the manifest is written."""
    save(stored_root(bucket), 20)
    late = uncommitted(bucket)
    context = sample_context(tmp_path, job=stored_job(bucket))
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    states = [with_parts(shard_state(41), shard, late) for shard in range(2)]
    assert recover(bucket, tmp_path) == [f"{stored_root(bucket)}/00000020-g1"] * 2
    committer.update(states)
    found = newest(stored_root(bucket))
    assert found is not None
    assert found.step == 20
    assert "restored an earlier step" in committer.cause


def test_a_checkpoint_that_is_committed_during_a_recovery_is_restored(
    s3: S3Server, bucket: StoreFolder, tmp_path: Path
) -> None:
    save(stored_root(bucket), 20)
    late = uncommitted(bucket)
    begun = iter([True])

    def commit(method: str, path: str) -> None:
        """Just before the recovery keeps it from being committed."""
        if method == "PUT" and path.endswith("manifest.json") and next(begun, False):
            save(stored_root(bucket), late.step)

    s3.fault = commit
    assert recover(bucket, tmp_path) == [f"{stored_root(bucket)}/00000040-g1"] * 2
