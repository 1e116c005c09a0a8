"""Logs that are read as they grow: a file, one log of entries, several logs at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from psfleet.launch.follow import Follower, Tail, merged
from psfleet.polling import wait_until

WAIT_SECS = 10.0
"""For a thread that has nothing else to do."""


def test_a_log_is_followed_line_by_line_as_it_grows(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []
    log = tmp_path / "worker-0.log"
    follower = Follower(log, seen.append)
    follower.read()
    assert seen == [], "there is no log yet"
    for text in (b'{"step": 1}\nnoise\n{"st', b'ep": 2', b'}\n\n{"step": 3}\n'):
        with log.open("ab") as file:
            file.write(text)
        follower.read()
    follower.read()
    assert [entry["step"] for entry in seen] == [1, 2, 3]


class Log:
    """A log whose next line waits until the gate is opened."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines
        self.gate = threading.Semaphore(0)
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.gate.acquire()
            yield line
        self.has_ended = True

    def end(self) -> None:
        """Lets all lines through."""
        self.gate.release(len(self._lines))


def test_a_tail_has_the_entries_since_the_last_look_and_says_when_there_will_be_no_more() -> None:
    log = Log('{"step": 1, "time": 1.0}', "noise", '{"step": 2}', '{"step": 3, "time": 3.0}')
    tail = Tail(log)
    assert (tail.entries(), tail.is_over) == ([], False)
    log.gate.release()
    first = wait_until(tail.entries, WAIT_SECS, "the first entry", done=bool)
    assert ([entry["step"] for entry in first], tail.is_over) == ([1], False)
    log.end()
    tail.join(WAIT_SECS)
    assert [entry["step"] for entry in tail.entries()] == [3], "one without a time is not newer than the known ones"
    assert tail.is_over


@pytest.mark.parametrize("encoding", [None, "utf-8"], ids=["text", "bytes"])
def test_a_log_that_is_read_again_has_only_newer_entries(encoding: str | None) -> None:
    lines = [json.dumps({"time": time}) for time in (1.0, 2.0, 3.0)]
    tail = Tail(lines if encoding is None else [line.encode(encoding) for line in lines], after=2.0)
    tail.join(WAIT_SECS)
    assert tail.entries() == [{"time": 3.0}]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_that_breaks_is_over() -> None:
    def broken() -> Iterator[str]:
        yield '{"time": 1.0}'
        raise OSError("gone")

    tail = Tail(broken())
    tail.join(WAIT_SECS)
    assert (tail.entries(), tail.is_over) == ([{"time": 1.0}], True)


def test_lines_of_several_logs_come_as_they_come_until_all_have_ended() -> None:
    ps, worker = Log("ps 1", "ps 2"), Log("worker 1")
    lines = merged([ps, worker])
    seen = []
    for log in (ps, worker, ps):
        log.gate.release()
        seen.append(next(lines))
    assert seen == ["ps 1", "worker 1", "ps 2"]
    assert list(lines) == []
    assert list(merged([])) == []


def test_who_wants_no_more_lines_ends_the_logs_and_their_threads() -> None:
    logs = [Log("a"), Log("b")]
    logs[0].gate.release()

    def end() -> None:
        for log in logs:
            log.end()

    lines = merged(logs, close=end, close_secs=WAIT_SECS)
    assert next(lines) == "a"
    lines.close()  # type: ignore[attr-defined]
    assert [log.has_ended for log in logs] == [True, True]
