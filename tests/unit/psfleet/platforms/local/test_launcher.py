"""What the launcher of local processes reports of a run whose chief left no report."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.report_samples import DONE
from support.s3_server import BROKEN, S3Server
from support.scripted_platform import ended, job

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import BadJobError
from psfleet.launch import watcher
from psfleet.launch.platform import Member
from psfleet.platforms.local import launcher
from psfleet.platforms.local.launcher import train
from psfleet.report import html
from psfleet.report.attempts import with_attempt
from psfleet.report.schema import EventLog, Report


class Processes:
    """Processes that have ended before anybody looks.

    Attributes:
        found: The members; their chief writes `report` when it starts, with the run's id.
    """

    run = "small-2"
    found: tuple[Member, ...] = ()
    report: Report | None = None

    def __init__(
        self, job: Any, folder: Any, program_folder: Path, signals: list[int], certificates: Path | None
    ) -> None:
        self._folder = folder.path

    def start(self) -> None:
        if self.report is not None:
            html.publish(with_attempt(self.report.model_copy(update={"run": self.run}), 200.0, 0, []), self._folder)

    def members(self, name: str) -> list[Member]:
        return list(self.found)

    def remove(self, name: str, results: bool) -> bool:
        return True


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that is done; the next attempt ends at once."""
    first = with_attempt(DONE.model_copy(update={"checkpoint": None}), 100.0, 0, [])
    first.write(tmp_path)
    EventLog(tmp_path / EventLog.FILE_NAME).append(DONE.events[0])
    (tmp_path / ".run").write_text('{"name": "small"}')
    monkeypatch.setattr(launcher, "Local", Processes)
    monkeypatch.setattr(watcher.FleetWatcher, "run", lambda self: None)
    monkeypatch.setattr(Processes, "found", (ended("ps"), ended("chief", 0, 78, cause="it does not match")))
    monkeypatch.setattr(Processes, "report", None)
    return tmp_path


def test_an_attempt_that_is_refused_leaves_every_number(out: Path) -> None:
    report = train(job(), out=out)
    assert (report.status, report.exit_code, report.error, report.run) == (
        "failed",
        78,
        "chief: it does not match",
        "small-2",
    )
    assert (report.gradients, report.loss, report.final_step) == (DONE.gradients, DONE.loss, DONE.final_step)
    assert report.events == DONE.events, "an event of an earlier attempt is not one of this attempt"
    assert [(each.run, each.exit_code) for each in report.attempts] == [("lenet-1", 0), ("small-2", 78)]
    assert report == Report.read(out)
    assert (out / "report.html").exists()


def test_the_report_of_a_run_is_returned_although_its_disk_is_full(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = Report.read(out)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Report, "write", full)
    report = train(job(), out=out)
    assert (report.exit_code, report.error, report.loss) == (78, "chief: it does not match", DONE.loss)
    assert f"the report cannot be written to {out}: No space left on device" in caplog.text
    assert Report.read(out) == before


def test_a_run_that_cannot_be_watched_leaves_the_report_before(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a launcher that is killed does."""
    before = Report.read(out)

    def broken(self: watcher.FleetWatcher) -> None:
        assert Report.read(out) == before
        raise OSError("killed")

    monkeypatch.setattr(watcher.FleetWatcher, "run", broken)
    with pytest.raises(OSError, match="killed"):
        train(job(), out=out)
    assert Report.read(out) == before


def test_the_report_of_the_chief_is_that_of_this_attempt_only(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "report", DONE)
    assert [each.started for each in train(job(), out=out).attempts] == [100.0, 200.0]
    monkeypatch.setattr(Processes, "run", "small-3")
    monkeypatch.setattr(Processes, "report", None)
    assert [each.exit_code for each in train(job(), out=out).attempts] == [0, 0, 78]


def test_a_fresh_run_has_one_attempt(out: Path) -> None:
    report = train(job(), out=out, fresh=True)
    assert (report.exit_code, report.loss, len(report.attempts)) == (78, None, 1)


def test_a_script_shows_the_progress_on_stderr_unless_it_listens(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a script prints itself is on stdout."""
    train(job(), out=out, listener=lambda entry: None)
    assert capsys.readouterr() == ("", "")
    train(job(), out=out)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("small: starting 1 ps, ")


@pytest.mark.usefixtures("s3")
def test_a_store_that_does_not_exist_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(BadJobError, match=r"checkpoint\.store: .*bucket never-made does not exist"):
        train(job(checkpoint={"store": "s3://never-made/run"}), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_that_does_not_answer_is_left_to_the_fleet(
    s3: S3Server, bucket: StoreFolder, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.fault = lambda method, path: BROKEN
    assert train(job(checkpoint={"store": f"{bucket}/run"}), out=out).exit_code == 78, "that of the scripted chief"
