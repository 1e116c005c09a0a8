"""A chief keeps the records of its own attempt of the run, and no attempt removes what earlier ones reported."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.checkpoint_samples import save
from support.chief_samples import sample_job
from support.report_samples import DONE

from psfleet.control import control_pb2 as pb
from psfleet.errors import StorageError
from psfleet.report import html
from psfleet.report.attempts import with_attempt, with_end
from psfleet.report.hold import AT_START, HoldRecord
from psfleet.report.schema import Event, EventLog, Report
from psfleet.run_folder import STARTED
from psfleet.service import settings
from psfleet.service.settings import Settings
from worker_service.chief.events import Events
from worker_service.chief.run_attempt import begin

LONG_AGO = 1000.0
RATE = {"learning_rate": 0.05}


def chief(out: Path, **env: str) -> Settings:
    """A chief's settings."""
    return settings.read({"PSFLEET_OUT": str(out), **{f"PSFLEET_{name}": text for name, text in env.items()}})


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a run whose first chief, of attempt `a`, started long ago and recorded an event."""
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: LONG_AGO)
        assert begin(chief(tmp_path, START="a")).started == LONG_AGO
    EventLog(tmp_path / EventLog.FILE_NAME).append(
        Event(time=LONG_AGO, role="worker", index=1, kind="restarted", cause="it was killed", steps_lost=0)
    )
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.mark.parametrize("env", [{"START": "a"}, {"CAUSE": "it was killed"}, {"CAUSE": "it was killed", "START": "a"}])
def test_a_chief_that_replaces_another_keeps_its_start_time_and_events(out: Path, env: dict[str, str]) -> None:
    assert begin(chief(out, **env)).started == LONG_AGO
    assert len(EventLog(out / EventLog.FILE_NAME).read()) == 1


@pytest.mark.parametrize("env", [{"START": "b"}, {}])
def test_the_first_chief_of_an_attempt_keeps_reports_and_counts_only_its_own_events(
    out: Path, env: dict[str, str]
) -> None:
    """A crash at any time leaves the report of the attempts before."""
    DONE.write(out)
    (out / Report.DRAFT_NAME).write_text("of the attempt before")
    before = time.time()
    attempt = begin(chief(out, **env))
    assert attempt.started >= before
    assert Report.read(out) == DONE
    assert not (out / Report.DRAFT_NAME).exists()
    assert len(EventLog(out / EventLog.FILE_NAME).read()) == 1
    Events(out, sample_job(), attempt.first_event).add("ps", 0, "restarted", "killed")
    again = begin(chief(out, CAUSE="it was killed"))
    assert [event.role for event in Events(out, sample_job(), again.first_event).all()] == ["ps"]


def test_the_restart_of_a_chief_that_was_killed_before_it_began_does_not_continue_the_attempt_before(out: Path) -> None:
    """For example because the program took too much memory: its successor has a cause, but the marker is an old one."""
    html.publish(begin(chief(out, START="a")).entry_in(DONE), out)
    (out / Report.DRAFT_NAME).write_text("of the attempt before")
    attempt = begin(chief(out, START="b", CAUSE="it was killed"))
    assert attempt.started > LONG_AGO
    assert not attempt.has_result()
    assert not (out / Report.DRAFT_NAME).exists()
    assert Events(out, sample_job(), attempt.first_event).all() == []
    assert begin(chief(out, START="b", CAUSE="it was killed")).started == attempt.started


def test_the_containers_of_a_host_name_are_one_attempt(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker restarts a container under its host name; `psfleet up` makes a new one."""

    def started(host: str, **env: str) -> float:
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
        return begin(chief(out, RECORDS=str(tmp_path / "records"), **env)).started

    first = started("one")
    assert started("one", CAUSE="it was killed") == first
    assert started("other", CAUSE="it was killed") > first


def test_an_attempt_knows_from_which_step_it_starts_with_which_changes(tmp_path: Path) -> None:
    job = sample_job(train={"steps": 300, "batch_size": 8})
    save(tmp_path / "checkpoints", 100, extra={"job": sample_job().model_dump(mode="json")})
    for env in ({}, {"CAUSE": "it was killed"}):
        attempt = begin(chief(tmp_path, JOB=job.model_dump_json(), **env))
        assert (attempt.first_step, attempt.changes) == (100, ("train.steps 100 -> 300",))
        save(tmp_path / "checkpoints", 200)
    (entry,) = attempt.entry_in(DONE).attempts
    assert (entry.first_step, entry.final_step, entry.started) == (100, DONE.final_step, attempt.started)
    assert entry.changes == ["train.steps 100 -> 300"]


def test_an_attempt_knows_when_the_learning_rate_of_the_programs_optimizer_has_changed(tmp_path: Path) -> None:
    own, before, now = (sample_job(optimizer={"name": "program", **rate}) for rate in ({}, RATE, {"learning_rate": 1}))
    save(tmp_path / "checkpoints", 100, extra={"job": before.model_dump(mode="json")})
    settings = chief(tmp_path, JOB=own.model_dump_json())
    assert begin(settings, before).changes == ()
    assert begin(settings, now).changes == ("optimizer.learning_rate 0.05 -> 1.0",)


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"name": "a"}', '{"name": "a", "time": "noon"}'])
def test_a_marker_that_cannot_be_read_is_ignored(out: Path, text: str) -> None:
    (out / STARTED).write_text(text)
    assert begin(chief(out, START="a")).started > LONG_AGO
    assert begin(chief(out, START="a", CAUSE="it was killed")).started > LONG_AGO


def test_without_any_ps_only_the_newest_chief_of_an_attempt_may_report_a_failure(out: Path) -> None:
    """A chief that was frozen, or cut off, finds no ps that knows the chief that replaced it."""
    older = begin(chief(out, START="a", CAUSE="it was killed"))
    assert older.may_report_failure([None, None])
    newer = begin(chief(out, START="a", CAUSE="it did not answer"))
    assert newer.may_report_failure([None, None])
    assert not older.may_report_failure([None, None])


def test_a_ps_that_answers_decides_who_is_the_chief(out: Path) -> None:
    """A chief can write the marker late, and the fleet admits the other one."""
    admitted = begin(chief(out, START="a", CAUSE="it was killed"))
    begin(chief(out, START="a", CAUSE="it was killed"))
    assert admitted.may_report_failure([None, pb.ShardState()])


def test_a_chief_whose_marker_is_gone_reports(out: Path) -> None:
    attempt = begin(chief(out, START="a", CAUSE="it was killed"))
    (out / STARTED).unlink()
    assert attempt.may_report_failure([None])


def test_only_the_report_that_this_attempt_is_done_is_its_result(out: Path) -> None:
    attempt = begin(chief(out, START="a", CAUSE="it was killed"))
    assert not attempt.has_result()
    html.publish(with_attempt(DONE, LONG_AGO - 10, 0, []), out)
    assert not attempt.has_result(), "an earlier attempt was done"
    html.publish(attempt.entry_in(with_end(DONE, "failed", 75, "lost ps 1")), out)
    assert not attempt.has_result()
    html.publish(attempt.entry_in(DONE), out)
    assert attempt.has_result()
    assert not attempt.may_report_failure([pb.ShardState()])
    assert begin(chief(out, START="b")).may_report_failure([pb.ShardState()]), "the next attempt failed"


def test_a_run_in_containers_is_held_from_its_start_and_no_chief_that_replaces_another_resets_that(out: Path) -> None:
    begin(chief(out, START="b", HOLD="start"))
    assert HoldRecord.read(out) == HoldRecord(AT_START)
    HoldRecord(20, "a call").write(out)
    begin(chief(out, START="b", HOLD="start", CAUSE="it was killed"))
    assert HoldRecord.read(out) == HoldRecord(20, "a call")
    begin(chief(out, START="c"))
    assert HoldRecord.read(out) is None, "the next start of the fleet is not held"


def test_a_launcher_has_written_where_its_run_is_held(out: Path) -> None:
    HoldRecord(AT_START).write(out)
    begin(chief(out, START="b", LAUNCHED_MS="1000"))
    assert HoldRecord.read(out) == HoldRecord(AT_START)


def test_a_run_is_not_begun_unheld_because_the_disk_refuses_the_record(out: Path) -> None:
    (out / ".hold.json.tmp").mkdir()
    with pytest.raises(StorageError, match=r"hold\.json cannot be written"):
        begin(chief(out, START="b", HOLD="start"))
    (out / ".hold.json.tmp").rmdir()
    begin(chief(out, START="b", HOLD="start"))
    assert HoldRecord.read(out) == HoldRecord(AT_START)
