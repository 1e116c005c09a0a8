"""The record of a hold: written whole, bounded, and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.errors import BadJobError
from psfleet.report.hold import FILE_NAME, MAX_EARLIER, HoldRecord


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert HoldRecord.read(tmp_path) is None
    record = HoldRecord(20).followed_by(25, "first").followed_by(30, "second")
    record.write(tmp_path)
    assert HoldRecord.read(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert [record.step_of(call) for call in ("first", "second", "third")] == [25, 30, None]


def test_it_knows_the_last_calls_only() -> None:
    record = HoldRecord(0)
    for number in range(MAX_EARLIER + 2):
        record = record.followed_by(number, str(number))
    assert record.step_of("0") is None
    assert [record.step_of(str(number)) for number in range(1, MAX_EARLIER + 2)] == list(range(1, MAX_EARLIER + 2))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"call": "1"}', '{"step": "far", "call": ""}', '{"step": 1, "call": "", "earlier": [1]}'],
    ids=["empty after a loss of power", "a list", "a number", "without a step", "no number", "earlier calls"],
)
def test_what_is_no_record_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    """A run that is held must not train on because of it."""
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(BadJobError, match=r"hold\.json is no record of a hold .*expected one, or no file"):
        HoldRecord.read(tmp_path)
