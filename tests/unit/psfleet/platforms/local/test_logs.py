"""The logs of local runs, as `psfleet logs` prints them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from support.program_samples import sample_job

from psfleet.errors import UsageError
from psfleet.platforms.local.growing_log import GrowingLog
from psfleet.platforms.local.logs import local_logs, run_folder_of
from psfleet.run_folder import RunFolder, claimed

JOB = sample_job()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has ended."""
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        folder.log("ps", 0).write_text("one\ntwo\nthree\n")
        folder.log("worker", 0).write_text("first\nlast, without an end")
    return tmp_path / "a"


def test_the_lines_of_all_logs_have_the_names_of_their_tasks(run: Path) -> None:
    lines = [("ps-0", "one"), ("ps-0", "two"), ("ps-0", "three"), ("chief", "first"), ("chief", "last, without an end")]
    assert list(local_logs(run, None, False, None)) == lines
    assert list(local_logs(run, None, True, 1)) == [lines[2], lines[4]]
    assert list(local_logs(run, "worker-0", False, None)) == list(local_logs(run, "chief", False, None)) == lines[3:]
    assert list(local_logs(run, "ps-0", False, 0)) == []
    with pytest.raises(UsageError, match="has no log of ps-7, expected one of chief, ps-0"):
        local_logs(run, "ps-7", False, None)


def test_a_loader_has_lines_of_its_own(run: Path) -> None:
    RunFolder(run).log("loader", 1).write_text("ready\n")
    assert list(local_logs(run, "loader-1", False, None)) == [("loader-1", "ready")]
    assert ("loader-1", "ready") in local_logs(run, None, False, None)


def test_a_run_that_trains_is_followed_to_its_end(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        log = folder.log("worker", 0)
        log.write_text("old\nnewest\nhalf a ")
        lines = local_logs(folder.path, "chief", True, 1)
        assert next(lines) == ("chief", "newest")
        log.write_text(log.read_text() + "line\nthe end")
        assert next(lines) == ("chief", "half a line")
    assert list(lines) == [("chief", "the end")]


def test_the_folder_of_a_job_is_that_of_its_own_local_run(run: Path) -> None:
    folder = run.parent
    with claimed(folder / "copied", JOB, fresh=False, platform="compose") as copied:
        copied.log("worker", 0).touch()
    assert run_folder_of(JOB.name, folder) == run
    assert run_folder_of(JOB.name, folder, only_running=True) is None
    assert run_folder_of("other", folder) is None
    assert run_folder_of(JOB.name, folder / "none") is None
    with claimed(run, JOB, fresh=False, keeps=True):
        assert run_folder_of(JOB.name, folder, only_running=True) == RunFolder(run).path


def test_logs_that_appear_or_are_replaced_while_a_run_is_followed_are_read(tmp_path: Path) -> None:
    """The launcher creates them one after the other; the next start deletes and creates them again."""
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        folder.log("ps", 0).write_text("one\n")
        lines = local_logs(folder.path, None, True, None)
        assert next(lines) == ("ps-0", "one")
        folder.log("worker", 0).write_text("a longer line\n")
        assert next(lines) == ("chief", "a longer line")
        folder.log("ps", 0).unlink()
        folder.log("worker", 0).write_text("again\n")
        assert next(lines) == ("chief", "again")
        renamed = tmp_path / "next"
        renamed.write_text("a line of the next start\nand another\n")
        renamed.replace(folder.log("worker", 0))
        assert [next(lines), next(lines)] == [("chief", "a line of the next start"), ("chief", "and another")]
    assert list(lines) == []


@pytest.mark.parametrize("tail", [None, 2])
def test_the_log_of_a_long_run_is_not_loaded_into_memory(run: Path, tail: int | None) -> None:
    log = RunFolder(run).log("ps", 0)
    log.write_text("".join(f"{number:01000d}\n" for number in range(20_000)))
    tracemalloc.start()
    try:
        found = [int(line[-5:]) for _, line in local_logs(run, "ps-0", False, tail)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == list(range(20_000))[-(tail or 20_000) :]
    assert peak < 5_000_000


def test_a_line_that_does_not_end_is_not_copied_whenever_it_grows(tmp_path: Path) -> None:
    """A progress bar can write into one line for hours."""
    file = tmp_path / "worker-0.log"
    file.write_bytes(b"first\n" + b"x" * (1 << 24))
    log = GrowingLog(file)
    assert list(log.read(is_last=False)) == ["first"]
    with file.open("ab") as more:
        more.write(b"y")
    tracemalloc.start()
    try:
        assert list(log.read(is_last=False)) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    with file.open("ab") as more:
        more.write(b"\nlast")
    whole, last = log.read(is_last=True)
    assert (len(whole), whole[-1], last) == ((1 << 24) + 1, "y", "last")
