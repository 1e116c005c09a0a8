"""The results of a run that are copied from a platform: no success that is not proved."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.report_samples import DONE as DONE_REPORT
from support.scripted_platform import ScriptedPlatform, ended, log, member

from psfleet import run_folder
from psfleet.checkpoint.store import verify
from psfleet.errors import DONE, LOST_PEERS, NO_CHECKPOINT, PROGRAM_FAILED, LostPeerError, StorageError
from psfleet.job.job import Job
from psfleet.launch.platform import Member
from psfleet.launch.results import collect
from psfleet.polling import wait_until
from psfleet.report.schema import BestInfo, CheckpointInfo, Report

STEPS = 20
CREATED = 1_700_000_000.0
SECS = 20.0
"""Far more than anything here takes."""


def failed(time: float, code: int = 70, index: int = 1, message: str = "raised ValueError") -> dict[str, Any]:
    who = {"role": "worker", "index": index, "time": time}
    return {**who, "event": "failed", "exit_code": code, "message": message}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Of a run that is done, with its report and its checkpoint."""
    folder = tmp_path / "volume"
    saved = save(folder / "checkpoints", STEPS)
    leave(folder, checkpoint=CheckpointInfo(path=f"/out/checkpoints/{saved.folder.name}", step=STEPS))
    return folder


def leave(folder: Path, time: float = CREATED + 10, **changes: Any) -> None:
    """The chief's report, written at a time."""
    content = {
        "status": "done",
        "exit_code": 0,
        "name": "small",
        "run": "small",
        "mode": "sync",
        "target_step": STEPS,
        "loss": 0.5,
    }
    path = Report(**{**content, "final_step": STEPS, **changes}).write(folder)
    os.utime(path, (time, time))


def chief(code: int = 0, **changes: Any) -> Member:
    return ended("chief", 0, code, created=CREATED, **changes)


def results(tmp_path: Path, volume: Path, *members: Member, logs: dict[str, list[str]] | None = None) -> Report:
    """The report of a fleet."""
    volume.mkdir(exist_ok=True)
    return collect(ScriptedPlatform(members, logs=logs, results=volume), "small", tmp_path / "out", "scripted")


def test_a_run_that_was_stopped_early_is_done_and_its_best_checkpoint_is_the_copy(tmp_path: Path, volume: Path) -> None:
    saved = save(volume / "checkpoints", 12)
    at = CheckpointInfo(path=f"/out/checkpoints/{saved.folder.name}", step=12)
    best = BestInfo(metric="accuracy", value=0.5, step=12, path=at.path)
    leave(volume, checkpoint=at, best=best, stopped_early="accuracy has not improved")
    report = results(tmp_path, volume, chief(), ended("ps"))
    assert (report.status, report.exit_code) == ("done", DONE)
    assert report.best is not None
    assert report.best.path == str(tmp_path / "out" / "checkpoints" / saved.folder.name)
    leave(volume, checkpoint=at)
    assert results(tmp_path, volume, chief(), ended("ps")).exit_code == NO_CHECKPOINT


def test_a_done_run_is_done_and_its_checkpoint_is_the_copy(tmp_path: Path, volume: Path) -> None:
    report = results(tmp_path, volume, chief(), ended("ps"), logs={"ps-0": ["served"]})
    assert (report.status, report.exit_code) == ("done", DONE)
    assert report.checkpoint is not None
    assert Path(report.checkpoint.path) == tmp_path / "out" / "checkpoints" / f"{STEPS:08}-g1"
    assert Report.read(tmp_path / "out") == report
    assert (tmp_path / "out" / "logs" / "ps-0.log").read_text() == "served\n"


def test_the_log_of_a_worker_is_named_after_the_index_that_it_leased(tmp_path: Path, volume: Path) -> None:
    one = member("worker", None, name="w-1", host="a")
    own = ({"role": "worker", "index": index, "message": "joined"} for index in (-1, 3))
    logs = {"w-1": log(*own)}
    assert results(tmp_path, volume, chief(), one, logs=logs).status == "done"
    assert "joined" in (tmp_path / "out" / "logs" / "worker-3.log").read_text()


def test_logs_are_utf_8_in_every_locale(tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "text_encoding", lambda encoding, stacklevel=2: encoding or "ascii")
    results(tmp_path, volume, chief(), ended("ps"), logs={"ps-0": ["“served” …"]})
    assert (tmp_path / "out" / "logs" / "ps-0.log").read_bytes() == "“served” …\n".encode()


def test_logs_are_saved_of_members_that_wait_for_a_restart_or_were_scaled_away(tmp_path: Path, volume: Path) -> None:
    waiting, silent = member("worker", 1, started=0.0, state="waiting"), member("worker", 2, started=0.0)
    platform = ScriptedPlatform([chief(), waiting, silent], logs={"worker-1": ["a"], "worker-3": ["b"]}, results=volume)
    platform.former = [ended("worker", 3, 75)]
    collect(platform, "small", tmp_path / "out", "scripted")
    saved = {path.name: path.read_text() for path in (tmp_path / "out" / "logs").iterdir()}
    assert saved == {"worker-1.log": "a\n", "worker-3.log": "b\n"}


def test_only_what_belongs_to_a_run_is_copied(tmp_path: Path, volume: Path) -> None:
    (volume / "notes.txt").write_text("of the user")
    results(tmp_path, volume, chief())
    assert not (tmp_path / "out" / "notes.txt").exists()


def test_a_copy_that_is_not_whole_is_no_success(tmp_path: Path, volume: Path) -> None:
    part = next((volume / "checkpoints" / f"{STEPS:08}-g1").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])
    report = results(tmp_path, volume, chief())
    assert (report.status, report.exit_code) == ("failed", NO_CHECKPOINT)


def test_a_checkpoint_before_the_target_is_no_success(tmp_path: Path, volume: Path) -> None:
    saved = save(volume / "checkpoints", STEPS - 1)
    leave(volume, checkpoint=CheckpointInfo(path=f"/out/checkpoints/{saved.folder.name}", step=STEPS))
    assert results(tmp_path, volume, chief()).exit_code == NO_CHECKPOINT


def test_a_report_that_names_no_checkpoint_is_no_success(tmp_path: Path, volume: Path) -> None:
    leave(volume)
    report = results(tmp_path, volume, chief())
    assert (report.status, report.exit_code, report.error) == (
        "failed",
        NO_CHECKPOINT,
        "the report names no checkpoint",
    )


def test_the_report_of_an_earlier_start_is_none(tmp_path: Path, volume: Path) -> None:
    os.utime(volume / "report.json", (CREATED - 10, CREATED - 10))
    report = results(tmp_path, volume, chief())
    assert report.exit_code != DONE
    assert report.error == "the chief left no report"


def test_a_start_without_a_report_is_an_entry_in_the_report_of_the_starts_before(tmp_path: Path, volume: Path) -> None:
    """The fleet was started again on its volume and failed before its chief could report, twice."""
    os.utime(volume / "report.json", (CREATED - 10, CREATED - 10))
    for started in (CREATED, CREATED + 60):
        one = replace(chief(78, cause="does not match"), created=started)
        report = results(tmp_path, volume, one)
    assert (report.status, report.exit_code, report.error) == ("failed", 78, "chief: does not match")
    assert [(each.status, each.exit_code) for each in report.attempts] == [("done", 0), ("failed", 78), ("failed", 78)]
    assert (report.final_step, report.loss) == (STEPS, 0.5)
    assert report.checkpoint is not None
    assert Path(report.checkpoint.path).parent == tmp_path / "out" / "checkpoints"


def test_a_volume_that_was_lost_deletes_nothing_from_the_report(tmp_path: Path, volume: Path) -> None:
    first = results(tmp_path, volume, chief())
    report = results(tmp_path, tmp_path / "none", chief(75, cause="lost ps 0"))
    assert (report.exit_code, report.loss, report.checkpoint) == (75, first.loss, first.checkpoint)


def test_results_that_are_copied_again_change_nothing(tmp_path: Path, volume: Path) -> None:
    first = results(tmp_path, volume, chief())
    assert results(tmp_path, volume, chief()) == first


def test_a_chief_that_did_not_end_as_its_report_says_is_no_success(tmp_path: Path, volume: Path) -> None:
    report = results(tmp_path, volume, chief(137, cause="out of memory"))
    assert (report.status, report.exit_code, report.error) == ("failed", LOST_PEERS, "chief: out of memory")


def test_a_chief_that_still_runs_has_no_success(tmp_path: Path, volume: Path) -> None:
    assert results(tmp_path, volume, member("chief", created=CREATED)).status == "failed"


def test_the_first_process_that_failed_is_the_cause_of_a_run_without_a_report(tmp_path: Path) -> None:
    logs = {
        "ps-0": log(failed(2.0, index=0, message="the run ended")),
        "worker-1": log(failed(1.0), failed(4.0, message="again")),
    }
    found = [ended(role, index, PROGRAM_FAILED) for role, index in (("ps", 0), ("worker", 1))]
    report = results(tmp_path, tmp_path / "none", chief(PROGRAM_FAILED), *found, logs=logs)
    assert (report.status, report.exit_code, report.error) == ("failed", 70, "worker 1: raised ValueError")


def test_a_temporary_failure_before_a_restart_is_not_the_cause(tmp_path: Path) -> None:
    logs = {
        "worker-1": log(failed(1.0, 75, message="survived"), failed(9.0, 75, message="late")),
        "ps-0": log(failed(8.0, 75, index=0, message="first")),
    }
    found = [ended("ps", 0, 75), ended("worker", 1, 75)]
    assert results(tmp_path, tmp_path / "none", chief(75), *found, logs=logs).error == "worker 0: first"


def test_an_event_failed_that_a_program_logs_is_no_cause(tmp_path: Path) -> None:
    """Structured logs of a program may have the fields of psfleet's; each process's last line is such a one."""
    own = {"event": "failed", "message": "upload of a picture", "exit_code": "none", "time": 9.0}
    texts = [own, {"event": "failed"}, {**own, "exit_code": 70, "time": 1.0}]
    logs = {"worker-1": log(failed(8.0), *texts)}
    report = results(tmp_path, tmp_path / "none", chief(70), ended("worker", 1, 70), logs=logs)
    assert report.error == "worker 1: raised ValueError"


def test_a_worker_that_failed_for_good_is_the_cause_though_the_chief_was_only_stopped(tmp_path: Path) -> None:
    report = results(tmp_path, tmp_path / "none", chief(143), ended("worker", 1, 70, cause="raised ValueError"))
    assert (report.exit_code, report.error) == (70, "worker-1: raised ValueError")


def test_a_worker_that_was_refused_is_not_the_cause_of_a_run_that_went_on_without_it(tmp_path: Path) -> None:
    report = results(tmp_path, tmp_path / "none", chief(75, cause="lost ps 0"), ended("worker", 1, 78))
    assert (report.exit_code, report.error) == (75, "chief: lost ps 0")


def test_a_run_that_was_stopped_because_a_ps_was_gone_for_good_failed_of_that(tmp_path: Path, volume: Path) -> None:
    leave(volume, status="stopped", exit_code=143, error="stopped by SIGTERM")
    report = results(tmp_path, volume, chief(143), ended("ps", 0, 137, cause="out of memory"))
    assert (report.status, report.exit_code) == ("failed", LOST_PEERS)
    assert report.error == "ps-0: out of memory, and was not started again"


def test_a_run_that_was_stopped_is_stopped(tmp_path: Path, volume: Path) -> None:
    leave(volume, status="stopped", exit_code=143, error="stopped by SIGTERM")
    report = results(tmp_path, volume, chief(143), ended("ps", 0, 143))
    assert (report.status, report.exit_code) == ("stopped", 143)


def test_a_copy_that_breaks_off_is_a_lost_peer(tmp_path: Path) -> None:
    class Broken(ScriptedPlatform):
        @contextmanager
        def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
            entry = tarfile.TarInfo(f"checkpoints/{kept.folder.name}/{kept.parts[0].file}")
            entry.size = 5000
            yield iter([iter([entry.tobuf(), b"short"])])

    kept = save(tmp_path / "out" / "checkpoints", STEPS)
    DONE_REPORT.write(tmp_path / "out")
    (tmp_path / "out" / ".run").write_text('{"name": "small"}')
    with pytest.raises(LostPeerError, match="the copy of the results broke off"):
        collect(Broken([chief()], logs={"chief": ["trained"]}), "small", tmp_path / "out", "scripted")
    assert (tmp_path / "out" / "logs" / "worker-0.log").read_text() == "trained\n", "logs are saved all the same"
    verify(kept)
    assert Report.read(tmp_path / "out") == DONE_REPORT


def test_two_commands_copy_to_one_folder_one_after_the_other(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(run_folder, "LOCK_SECS", 0.0)

    class Slow(ScriptedPlatform):
        @contextmanager
        def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
            copies.set()
            assert waits.wait(SECS), "the second command does not wait for the first one"
            with super().tar(job, names) as archives:
                yield archives

    def wait(*arguments: Any, **options: Any) -> None:
        if "another command to copy results" in arguments[2]:
            waits.set()
        wait_until(*arguments, **options)

    monkeypatch.setattr(run_folder, "wait_until", wait)
    platform = Slow([chief(), ended("ps")], results=volume, logs={"chief": ["trained"]})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(collect, platform, "small", tmp_path / "out", "scripted")
        assert copies.wait(SECS)
        second = pool.submit(collect, platform, "small", tmp_path / "out", "scripted")
        assert first.result(SECS) == second.result(SECS) == Report.read(tmp_path / "out")
    assert (first.result().status, len(first.result().attempts)) == ("done", 1)
    assert (tmp_path / "out" / "logs" / "worker-0.log").read_text() == "trained\n"


def test_results_that_cannot_be_written_leave_the_fleet_and_are_no_success(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Report, "write", full)
    with pytest.raises(StorageError, match=r"the report cannot be written to .*: No space left on device"):
        results(tmp_path, volume, chief(), ended("ps"))
