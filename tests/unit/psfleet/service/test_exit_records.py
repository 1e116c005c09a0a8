"""The exit record of a container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psfleet.errors import PERMANENT_CODES, PROGRAM_FAILED
from psfleet.service.exit_records import AlreadyEndedError, ExitRecord


def test_the_first_process_of_a_container_has_no_cause(tmp_path: Path) -> None:
    assert ExitRecord(tmp_path / "ended", "one").begin() == ""


def test_a_process_that_left_no_record_of_its_end_was_killed(tmp_path: Path) -> None:
    ExitRecord(tmp_path, "one").begin()
    assert ExitRecord(tmp_path, "one").begin() == "it was killed"


def test_the_cause_of_a_restart_is_how_the_process_before_ended(tmp_path: Path) -> None:
    before = ExitRecord(tmp_path, "one")
    before.begin()
    before.end(75, "lost ps 1")
    assert ExitRecord(tmp_path, "one").begin() == "lost ps 1 (exit code 75)"


@pytest.mark.parametrize("code", sorted(PERMANENT_CODES))
def test_a_process_after_a_permanent_error_ends_with_the_same_error(tmp_path: Path, code: int) -> None:
    before = ExitRecord(tmp_path, "one")
    before.begin()
    before.end(code, "the program raised ValueError")
    for _ in range(3):
        again = ExitRecord(tmp_path, "one")
        with pytest.raises(AlreadyEndedError, match="the program raised ValueError") as caught:
            again.begin()
        again.end(caught.value.exit_code, str(caught.value))
        assert caught.value.exit_code == code


def test_a_process_with_another_program_than_the_one_that_failed_is_restarted(tmp_path: Path) -> None:
    """The program is a mounted folder, in which the user has fixed it; the report of the failed run is kept."""
    before = ExitRecord(tmp_path, "one", program="1111")
    before.begin()
    before.end(PROGRAM_FAILED, "the program raised ValueError")
    with pytest.raises(AlreadyEndedError):
        ExitRecord(tmp_path, "one", program="1111").begin()
    fixed = ExitRecord(tmp_path, "one", program="2222")
    assert fixed.begin() == "the program was changed after it failed (exit code 70)"
    assert json.loads((tmp_path / "one.json").read_text())["starts"] == 2
    fixed.end(75, "lost ps 1")
    assert ExitRecord(tmp_path, "one", program="2222").begin() == "lost ps 1 (exit code 75)"


@pytest.mark.parametrize("code", sorted(PERMANENT_CODES - {PROGRAM_FAILED}))
def test_another_program_changes_nothing_about_an_error_that_is_not_the_programs(tmp_path: Path, code: int) -> None:
    before = ExitRecord(tmp_path, "one", program="1111")
    before.begin()
    before.end(code, "no valid checkpoint")
    with pytest.raises(AlreadyEndedError, match="no valid checkpoint"):
        ExitRecord(tmp_path, "one", program="2222").begin()


def test_a_new_container_has_no_record(tmp_path: Path) -> None:
    before = ExitRecord(tmp_path, "one")
    before.begin()
    before.end(70, "failed")
    assert ExitRecord(tmp_path, "two").begin() == ""


def test_an_incomplete_record_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"starts": 1, "exi')
    assert ExitRecord(tmp_path, "one").begin() == ""


def test_nothing_is_recorded_without_a_folder(tmp_path: Path) -> None:
    record = ExitRecord(None)
    assert record.begin() == ""
    record.end(70, "failed")
    assert list(tmp_path.iterdir()) == []
