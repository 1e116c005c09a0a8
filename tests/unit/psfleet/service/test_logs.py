"""Lines of logs: which of them psfleet wrote, and which of them are newer than others."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from psfleet.service.logs import (
    TAIL_BYTES,
    EntriesAfter,
    JsonFormatter,
    TextFormatter,
    last_failure,
    parse_line,
    tail,
)

OWN = {"time": 1.5, "level": "info"}


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (b'{"time": 1.5, "level": "info", "message": "a"}', {**OWN, "message": "a"}),
        ('{"time": 1.5, "level": "info", "step": 1}', {**OWN, "step": 1}),
        (b"", None),
        (b"I0000 port.cc:153] oneDNN", None),
        (b"[1]", None),
        (b"3", None),
        (b'{"time": 1.5, "level": "info", "message": ', None),
        (b'{"time": 1.5, "level": "info", "message": "\xff"}', {**OWN, "message": "\ufffd"}),
        ('\r 5/10 [====>   ]{"time": 1.5, "level": "info", "at": {"time": 2}}', {**OWN, "at": {"time": 2}}),
    ],
)
def test_only_an_object_is_a_log_entry(line: str | bytes, entry: dict[str, Any] | None) -> None:
    assert parse_line(line) == entry


@pytest.mark.parametrize(
    "when", ["10:00", None, [], 1531171074631, float("nan"), float("inf"), -1, 10**400, "1.5"], ids=str
)
def test_a_line_with_another_kind_of_time_is_a_training_programs_own(when: object) -> None:
    assert parse_line(json.dumps({**OWN, "time": when})) is None


@pytest.mark.parametrize("left_out", ["time", "level"])
def test_a_line_without_a_time_or_a_level_is_a_training_programs_own(left_out: str) -> None:
    assert parse_line(json.dumps({name: value for name, value in OWN.items() if name != left_out})) is None


def test_a_service_reads_what_it_writes() -> None:
    record = logging.makeLogRecord({"msg": "ready", "levelno": logging.INFO, "levelname": "INFO", "event": "started"})
    entry = parse_line(JsonFormatter(role="ps").format(record))
    assert entry is not None
    assert (entry["level"], entry["role"], entry["message"], entry["event"]) == ("info", "ps", "ready", "started")


@pytest.mark.parametrize(
    ("fields", "task"), [({}, "worker   "), ({"index": -1}, "worker   "), ({"index": 12}, "worker-12")]
)
def test_a_service_on_a_terminal_writes_time_level_task_message_and_traceback(
    fields: dict[str, int], task: str
) -> None:
    record = logging.makeLogRecord(
        {"msg": "step %d", "args": (3,), "levelname": "ERROR", "event": "failed", "details": "Traceback …\n"}
    )
    first, second = TextFormatter(role="worker", run="tiny", **fields).format(record).splitlines()
    assert first[8:] == f" ERROR   {task} step 3"
    assert second == "Traceback …"


def test_the_failure_of_a_process_is_its_own_and_not_a_programs_event_failed() -> None:
    own = {**OWN, "event": "failed", "exit_code": 70, "message": "raised ValueError"}
    lines = [json.dumps(entry) for entry in (own, {**OWN, "event": "failed"}, {**OWN, "event": "failed", "job": 3})]
    assert last_failure(lines, 70) == own
    assert last_failure(lines, 75) is None


@pytest.mark.parametrize("bracket", ["[", '{"a": '])
def test_a_line_that_is_nested_deeper_than_python_can_parse_is_no_entry(bracket: str) -> None:
    assert parse_line(bracket * 100_000) is None


def test_lines_behind_a_time_include_those_without_one_behind_them() -> None:
    lines = ["before", line(1.0), "old", '{"time": 9.0}', line(2.0), line(2.5), "new", line(2.2), "more"]
    is_new = EntriesAfter(2.0)
    assert list(filter(is_new, lines)) == [line(2.5), "new", line(2.2), "more"]
    assert is_new.last == 2.5


def test_every_line_of_a_log_that_nothing_was_read_of_is_new() -> None:
    is_new = EntriesAfter(None)
    assert is_new.last is None
    assert list(filter(is_new, ["a", "b"])) == ["a", "b"]
    assert list(filter(EntriesAfter(is_new.last), ["a", "b", line(1.0), "c"])) == [line(1.0), "c"]


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "ps-0.log"
    with log.open("wb") as file:
        # A hole: reading all of it would take 16 GiB of memory.
        file.truncate(1 << 34)
        file.seek(0, 2)
        file.write(b"\n" + b"a line\n" * (TAIL_BYTES // 14) + b"the last one\n")
    lines = tail(log)
    assert lines[-2:] == ["a line", "the last one"]
    assert sum(map(len, lines)) <= TAIL_BYTES
    log.write_text("one\ntwo")
    assert tail(log) == ["one", "two"]


def line(time: float) -> str:
    """A line of psfleet's own."""
    return json.dumps({**OWN, "time": time})
