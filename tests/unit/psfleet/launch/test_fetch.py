"""`psfleet results`: what a platform has of a run, whether its fleet trains, has ended or is down."""

from __future__ import annotations

import base64
import json
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.report_samples import DONE
from support.scripted_platform import ScriptedPlatform, ended, job, killed, member

from psfleet.checkpoint.store import newest
from psfleet.errors import NO_CHECKPOINT, LostPeerError, StorageError, UsageError
from psfleet.job.job import Job
from psfleet.launch.followed import collect_followed
from psfleet.launch.platform import Member
from psfleet.launch.results import fetch
from psfleet.launch.watcher import TakenDownError
from psfleet.report.attempts import with_attempt
from psfleet.report.schema import CheckpointInfo, Report

STEPS = 20
STOPPED = 143


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Of a run that was stopped at step 20."""
    folder = tmp_path / "volume"
    saved = save(folder / "checkpoints", STEPS)
    leave(folder, 100.0, checkpoint=CheckpointInfo(path=f"/out/checkpoints/{saved.folder.name}", step=STEPS))
    (folder / "events.jsonl").write_text(DONE.events[0].model_dump_json() + "\n")
    return folder


def leave(folder: Path, started: float, **changes: Any) -> Report:
    """The report of an attempt on a volume."""
    content = {"name": "small", "run": "small", "status": "stopped", "exit_code": STOPPED, "target_step": 40}
    report = DONE.model_copy(update={**content, "error": "stopped by SIGTERM", "final_step": STEPS, **changes})
    report = with_attempt(report, started, 0, [])
    report.write(folder)
    return report


def fetched(out: Path, volume: Path, *members: Member, **options: Any) -> Report | None:
    platform = ScriptedPlatform(members, logs={"chief": ["trained"], "ps-0": ["served"]}, results=volume)
    found = fetch(platform, "small", options.get("job", job()), out, "scripted")
    assert found.is_running == any(one.role == "chief" and (one.awaits_restart or not one.is_over) for one in members)
    return found.report


def test_a_fleet_that_is_down_leaves_what_its_chief_reported(out: Path, volume: Path) -> None:
    report = fetched(out, volume)
    assert report is not None
    assert (report.status, report.exit_code, report.final_step) == ("stopped", STOPPED, STEPS)
    found = newest(out / "checkpoints")
    assert found is not None
    assert report.checkpoint == CheckpointInfo(path=str(found.folder), step=STEPS)
    assert (Report.read(out), (out / "report.html").exists()) == (report, True)
    assert (out / "events.jsonl").read_text() == (volume / "events.jsonl").read_text()


def test_logs_and_reports_of_the_run_folder_stay_where_the_platform_has_less(out: Path, volume: Path) -> None:
    first = fetched(out, volume, ended("chief", 0, STOPPED), ended("ps", 0, STOPPED))
    assert first is not None
    assert (out / "logs" / "ps-0.log").read_text() == "served\n"
    again = fetched(out, volume, job=None)
    assert (again, Report.read(out)) == (first, first)
    assert (out / "logs" / "ps-0.log").read_text() == "served\n"
    (volume / "report.json").unlink()
    assert fetched(out, volume) == first


def test_a_report_of_a_success_without_its_checkpoint_is_none(out: Path, volume: Path) -> None:
    leave(volume, 200.0, status="done", exit_code=0, error=None, checkpoint=CheckpointInfo(path="/out/gone", step=40))
    report = fetched(out, volume)
    assert report is not None
    assert (report.status, report.exit_code) == ("failed", NO_CHECKPOINT)


def test_a_success_stays_one_after_a_later_attempt_has_replaced_its_checkpoint(out: Path, volume: Path) -> None:
    """The report is that of the attempt before the one that trains, which keeps only its newest checkpoints."""
    earlier = CheckpointInfo(path="/out/checkpoints/00000010-g1", step=10)
    leave(volume, 200.0, status="done", exit_code=0, error=None, target_step=10, final_step=10, checkpoint=earlier)
    report = fetched(out, volume, member("chief"), member("ps"))
    assert report is not None
    assert (report.status, report.exit_code, report.error) == ("done", 0, None)
    assert report.checkpoint is not None
    assert report.checkpoint.step == STEPS


@pytest.mark.parametrize("chief", [member("chief"), killed("chief")], ids=["trains", "is started again"])
def test_a_fleet_that_trains_has_results_but_no_outcome(out: Path, volume: Path, chief: Member) -> None:
    (volume / "report.json").unlink()
    assert fetched(out, volume, chief, member("ps")) is None
    assert not (out / "report.json").exists()
    assert newest(out / "checkpoints") is not None
    assert (out / "logs" / "worker-0.log").read_text() == "trained\n"


def test_a_job_file_that_was_edited_since_is_not_the_job_of_the_run(out: Path, volume: Path) -> None:
    fetched(out, volume, ended("chief", 0, STOPPED), ended("ps", 0, STOPPED))
    ran = (out / "job.json").read_text()
    edited = job().model_copy(update={"options": {"edited": True}})
    assert fetched(out, volume, job=edited) is not None
    assert (out / "job.json").read_text() == ran
    (out / "job.json").write_text("of a version that nobody can read")
    assert fetched(out, volume, job=edited) is not None
    assert Job.model_validate_json((out / "job.json").read_text()) == edited


def test_where_nothing_is_left_a_sentence_says_so(out: Path) -> None:
    platform = ScriptedPlatform([])
    platform.keeps_results = False
    with pytest.raises(UsageError, match="no fleet small is in the script, and no results of an earlier one") as error:
        fetch(platform, "small", job(), out, "scripted")
    assert error.value.exit_code == 64
    assert not out.exists()


def test_a_fleet_that_is_down_needs_the_job_file_or_the_run_folder(out: Path, volume: Path) -> None:
    with pytest.raises(UsageError, match=r"fleet small is down .* expected its job file"):
        fetched(out, volume, job=None)
    out.mkdir()
    (out / "job.json").write_text(json.dumps({**job().model_dump(mode="json"), "name": "other"}))
    with pytest.raises(UsageError, match="is of job other: expected the job file of small"):
        fetched(out, volume, job=None)


@pytest.mark.parametrize("left", [[], [ended("ps")]], ids=["the fleet", "the chief"])
def test_a_run_whose_fleet_is_removed_before_the_copy_has_the_report_of_its_chief(
    out: Path, volume: Path, left: list[Member]
) -> None:
    """By a command on another machine, which has copied the results, too."""
    leave(volume, 200.0, status="done", exit_code=0, error=None, target_step=STEPS)
    platform = ScriptedPlatform(left, results=volume)
    report = collect_followed(platform, job(), out, "scripted", created=200.9)
    assert (report.status, report.exit_code, Report.read(out)) == ("done", 0, report)
    with pytest.raises(TakenDownError, match="fleet small was taken down"):
        collect_followed(platform, job(), out, "scripted", created=300.0)
    (volume / "report.json").unlink()
    with pytest.raises(TakenDownError):
        collect_followed(platform, job(), out.with_name("other"), "scripted", created=200.9)


def test_a_run_whose_fleet_is_removed_during_the_copy_has_the_report_of_its_chief(out: Path, volume: Path) -> None:
    leave(volume, 200.0, status="done", exit_code=0, error=None, target_step=STEPS)

    class Removed(ScriptedPlatform):
        is_there = True

        @contextmanager
        def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
            if self.is_there:
                self.is_there, self._looks = False, [[]]
                raise LostPeerError("No such container")
            with super().tar(job, names) as archives:
                yield archives

    platform = Removed([ended("chief", created=200.0)], results=volume, logs={"chief": ["trained"]})
    report = collect_followed(platform, job(), out, "scripted", created=200.0)
    assert (report.status, report.exit_code) == ("done", 0)
    assert (out / "logs" / "worker-0.log").read_text() == "trained\n"


def test_a_copy_that_breaks_off_while_the_fleet_is_there_is_a_lost_peer(out: Path, volume: Path) -> None:
    class Broken(ScriptedPlatform):
        @contextmanager
        def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
            raise LostPeerError("the engine is shutting down")
            yield

    with pytest.raises(LostPeerError, match="the engine is shutting down"):
        collect_followed(Broken([ended("chief")], results=volume), job(), out, "scripted", created=0.0)


def test_pictures_and_files_of_callbacks_are_copied_and_pictures_that_the_chief_deleted_go(
    out: Path, volume: Path
) -> None:
    """The report shows the pictures that are in the run folder."""
    content = {"pictures/00000000-a.png": "first", "pictures/00000020-a.png": "newest", "callbacks/callback-a/b": "own"}
    for name, text in content.items():
        (volume / name).parent.mkdir(parents=True, exist_ok=True)
        (volume / name).write_text(text)
    (out / "pictures").mkdir(parents=True)
    for name in ("00000010-a.png", "mine.png"):
        (out / "pictures" / name).touch()
    fetched(out, volume, ended("chief", 0, STOPPED), ended("ps", 0, STOPPED))
    assert {name: (out / name).read_text() for name in content} == content
    assert sorted(path.name for path in (out / "pictures").iterdir()) == [
        "00000000-a.png",
        "00000020-a.png",
        "mine.png",
    ]
    assert base64.b64encode(b"newest").decode() in (out / "report.html").read_text()


def test_pictures_stay_where_the_platform_has_none(out: Path, volume: Path) -> None:
    (out / "pictures").mkdir(parents=True)
    (out / "pictures" / "00000010-a.png").touch()
    fetched(out, volume)
    assert (out / "pictures" / "00000010-a.png").exists()


@pytest.mark.parametrize("members", [[], [ended("chief", 0, STOPPED)], [member("chief")]], ids=["down", "over", "up"])
def test_results_that_cannot_be_written_are_an_error_of_storage(out: Path, volume: Path, members: list[Member]) -> None:
    out.mkdir()
    (out / "checkpoints").touch()
    with pytest.raises(StorageError, match=f"the results cannot be copied to {out}: Not a directory"):
        fetched(out, volume, *members)


def test_a_disk_that_fills_up_during_the_copy_is_an_error_of_storage(out: Path, volume: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(ScriptedPlatform):
        @contextmanager
        def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
            with super().tar(job, names) as archives:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
                yield archives

    try:
        with pytest.raises(StorageError, match=r"the results cannot be copied to .*: File too large"):
            fetch(Full([], results=volume), "small", job(), out, "scripted")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest(out / "checkpoints") is None


def test_a_log_that_cannot_be_written_is_an_error_of_storage(out: Path, volume: Path) -> None:
    class Late(ScriptedPlatform):
        def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Any:
            (out / "logs" / "worker-0.log").mkdir(exist_ok=True)
            yield "trained"

    with pytest.raises(StorageError, match=r"the results cannot be copied to .*: Is a directory"):
        fetch(Late([ended("chief", 0, STOPPED)], results=volume), "small", job(), out, "scripted")
