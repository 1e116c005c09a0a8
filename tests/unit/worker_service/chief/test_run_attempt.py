"""A chief keeps the records of its own attempt of the run, and removes those of an earlier one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.report.schema import Event, EventLog, Report
from psfleet.run_folder import STARTED
from psfleet.service import settings
from psfleet.service.settings import Settings
from worker_service.chief.run_attempt import begin, has_result

LONG_AGO = 1000.0


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
def test_the_first_chief_of_an_attempt_removes_the_records_and_keeps_the_checkpoints(
    out: Path, env: dict[str, str]
) -> None:
    before = time.time()
    assert begin(chief(out, **env)).started >= before
    assert EventLog(out / EventLog.FILE_NAME).read() == []
    assert (out / "checkpoints").is_dir()


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"name": "a"}', '{"name": "a", "time": "noon"}'])
def test_a_marker_that_cannot_be_read_is_ignored(out: Path, text: str) -> None:
    (out / STARTED).write_text(text)
    assert begin(chief(out, START="a")).started > LONG_AGO
    assert begin(chief(out, START="a", CAUSE="it was killed")).started > LONG_AGO


def test_without_any_ps_only_the_newest_chief_of_an_attempt_may_report_a_failure(out: Path) -> None:
    """A chief that was frozen, or cut off, finds no ps that could tell it about the chief that replaced it."""
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"status": "done"}', True), ('{"status": "failed"}', False), ("[]", False), ("", False), (None, False)],
)
def test_only_the_report_of_a_run_that_is_done_is_a_result(tmp_path: Path, text: str | None, expected: bool) -> None:
    if text is not None:
        (tmp_path / Report.FILE_NAME).write_text(text)
    assert has_result(tmp_path) == expected
