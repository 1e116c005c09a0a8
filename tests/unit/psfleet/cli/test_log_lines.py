"""Log lines of a fleet as they are printed."""

from __future__ import annotations

import json

import pytest
from support.scripted_platform import log

from psfleet.cli.log_lines import readable, since


def test_lines_since_a_time_include_those_without_one_behind_them() -> None:
    old, new = log({"time": 1.0}, {"time": 5.0})
    lines = [("ps-0", text) for text in (old, "old", new, "new")]
    assert [text for _, text in since([*lines, ("chief", "before its first entry")], 5.0)] == [new, "new"]


def test_an_entry_is_printed_with_its_time_level_task_and_message() -> None:
    entry = {"time": 1.0, "level": "info", "message": "ps is ready", "traceback": "Traceback …\n"}
    first, second = readable("ps-0", json.dumps(entry)).splitlines()
    assert first[8:] == " INFO    ps-0      ps is ready"
    assert second == "Traceback …"
    assert readable("ps-0", "oneDNN is on") == "ps-0 | oneDNN is on"


@pytest.mark.parametrize("when", ["10:00", None, 1e12])
def test_a_line_of_a_program_that_has_a_time_of_its_own_is_printed_as_it_is(when: object) -> None:
    first, second = log({"time": 2.0}, {"time": 3.0})
    program = json.dumps({"time": when, "level": "info", "message": "epoch 1"})
    assert [text for _, text in since([("chief", each) for each in (first, program, second)], 3.0)] == [second]
    assert readable("chief", program) == f"chief | {program}"
