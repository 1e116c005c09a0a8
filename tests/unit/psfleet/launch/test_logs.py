"""Logs of members: read as they grow, several at once, and over restarts."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.scripted_platform import ScriptedPlatform, ended, log, member

from psfleet.errors import LostPeerError, UsageError
from psfleet.launch.log_reader import Tail, read_into
from psfleet.launch.logs import fleet_logs, merge
from psfleet.launch.platform import Member
from psfleet.polling import wait_until

WAIT_SECS = 10.0
"""For a thread that has nothing else to do."""


class Gated:
    """A log whose next line waits until the gate is opened."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines
        self.gate = threading.Semaphore(0)

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            assert self.gate.acquire(timeout=WAIT_SECS)
            yield line


def steps(tail: Tail, count: int) -> list[int]:
    """The steps of that many entries."""
    found: list[int] = []
    wait_until(
        lambda: found.extend(entry["step"] for entry in tail.entries()) or len(found),
        WAIT_SECS,
        f"{count} entries",
        done=lambda seen: seen >= count and tail.is_over,
        poll_secs=0.01,
    )
    return found


def test_a_tail_has_the_entries_of_one_process_after_the_other() -> None:
    logs = {("chief", 1.0): [*log({"step": 1, "time": 1.0}), "noise"], ("chief", 5.0): log({"step": 2, "time": 5.0})}
    tail = Tail(ScriptedPlatform([], logs=logs))
    tail.follow(member("chief"))
    assert steps(tail, 1) == [1]
    tail.follow(ended("chief", 0, 137))
    assert tail.entries() == [], "the same process again"
    tail.follow(member("chief", started=5.0))
    assert steps(tail, 1) == [2]


def test_a_tail_reads_a_log_that_broke_off_again_and_has_only_newer_entries() -> None:
    platform = ScriptedPlatform([], logs={"chief": log({"step": 1, "time": 1.0})})
    tail = Tail(platform)
    tail.follow(member("chief"))
    assert steps(tail, 1) == [1]
    platform._logs = {"chief": log({"step": 1, "time": 1.0}, {"step": 2, "time": 2.0})}
    tail.follow(member("chief"))
    assert steps(tail, 1) == [2]


@pytest.mark.parametrize("name", ["chief-b", "chief"])
def test_a_tail_reads_the_log_of_a_new_process_though_that_of_the_old_one_never_ends(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = log({"step": 1, "time": 1.0}), log({"step": 2, "time": 5.0})
    # The processes of one name write one log.
    platform = ScriptedPlatform([], logs={"chief": old, (name, 5.0): new if name != "chief" else [*old, *new]})
    platform.frozen.add("chief")
    stuck, is_read = threading.Event(), threading.Event()
    platform.release = lambda: (is_read.set(), stuck.wait(WAIT_SECS))
    tail = Tail(platform)
    tail.follow(member("chief"))
    assert is_read.wait(WAIT_SECS)
    again = member("chief", name=name, started=5.0)
    tail.follow(again)
    assert [entry["step"] for entry in tail.entries()] == [1], "the last lines of the old process have time to come"
    monkeypatch.setattr("psfleet.launch.log_reader.OLD_LOG_SECS", 0.0)
    tail.follow(again)
    found = wait_until(tail.entries, WAIT_SECS, "an entry of the new process", poll_secs=0.01)
    assert [entry["step"] for entry in found] == [2]
    stuck.set()


def test_a_process_that_has_ended_is_not_waited_for_and_no_entry_of_the_old_one_is_lost() -> None:
    logs = {("a", 1.0): log({"step": 1, "time": 1.0}), ("b", 5.0): log({"step": 2, "time": 5.0})}
    platform = ScriptedPlatform([], logs=logs)
    platform.frozen.add("a")
    stuck, is_read = threading.Event(), threading.Event()
    platform.release = lambda: (is_read.set(), stuck.wait(WAIT_SECS))
    tail = Tail(platform)
    tail.follow(member("chief", name="a"))
    assert is_read.wait(WAIT_SECS)
    tail.follow(ended("chief", 0, 0, name="b", started=5.0))
    assert steps(tail, 2) == [1, 2]
    stuck.set()


def test_a_member_without_a_process_has_no_log_to_read() -> None:
    tail = Tail(ScriptedPlatform([]))
    tail.follow(member("chief", started=0.0))
    assert (tail.is_over, tail.entries()) == (True, [])


def test_a_log_that_breaks_is_over() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise LostPeerError("gone")

    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    read_into(lines, broken())
    assert [lines.get(timeout=WAIT_SECS) for _ in range(2)] == ["a", None]


def test_lines_of_several_logs_come_in_the_order_of_their_arrival_until_all_have_ended() -> None:
    ps, worker = Gated("ps 1", "ps 2"), Gated("worker 1")
    lines = merge([ps, worker])
    seen = []
    for each in (ps, worker, ps):
        each.gate.release()
        seen.append(next(lines))
    assert seen == ["ps 1", "worker 1", "ps 2"]
    assert list(lines) == []
    assert list(merge([])) == []


LOGS = {"ps-0": ["a", "b"], "chief": ["c"], "worker-1": ["d"]}
FLEET = [member("ps"), member("chief"), member("worker", 1), member("tensorboard", None)]


def test_logs_are_those_of_all_tasks_or_of_one_which_may_be_the_chief() -> None:
    platform = ScriptedPlatform(FLEET, logs=LOGS)
    assert list(fleet_logs(platform, "small", None, follow=False)) == [
        ("ps-0", "a"), ("ps-0", "b"), ("chief", "c"), ("worker-1", "d"),
    ]  # fmt: skip
    assert list(fleet_logs(platform, "small", "worker-0", follow=False)) == [("chief", "c")]
    assert list(fleet_logs(platform, "small", "ps-0", follow=False, tail=1)) == [("ps-0", "b")]


def test_a_task_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="fleet small has no worker-7 with a log, expected one of chief, ps-0, worker"):
        list(fleet_logs(ScriptedPlatform(FLEET, logs=LOGS), "small", "worker-7", follow=False))


def test_a_log_is_followed_over_the_restarts_of_its_task() -> None:
    logs = {("ps-0", 1.0): ["a"], ("ps-0", 5.0): ["b"]}
    again = member("ps", started=5.0)
    platform = ScriptedPlatform([member("ps")], [member("ps")], [again], [ended("ps", started=5.0)], logs=logs)
    assert list(fleet_logs(platform, "small", "ps-0", follow=True)) == [("ps-0", "a"), ("ps-0", "b")]


def test_a_log_that_breaks_off_while_its_task_runs_is_opened_again_without_repeated_lines() -> None:
    first, second = log({"step": 1, "time": 1.0}), log({"step": 2, "time": 2.0})

    class Breaking(ScriptedPlatform):
        def log(self, member: Member, since: float = 0.0, **options: Any) -> Iterator[str]:
            opened.append(since)
            yield from [*first, "noise"]
            if len(opened) < 3:
                raise LostPeerError("the connection broke")
            yield from [*second, "more"]

    opened: list[float] = []
    away = LostPeerError("away")
    platform = Breaking([member("ps")], [member("ps")], away, [member("ps")], [ended("ps")])
    lines = [line for _, line in fleet_logs(platform, "small", "ps-0", follow=True)]
    assert lines == [*first, "noise", *second, "more"]
    assert opened == [0.0, 1.0, 1.0, 2.0], "the last time after the end of its process"


class Broken(ScriptedPlatform):
    """Its first log breaks off after a line; the next ones are whole.

    Attributes:
        opened: How each log was opened: `since`, `follow`.
    """

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Platform`."""
        self.opened = [*getattr(self, "opened", []), (since, follow)]
        lines = super().log(member)
        if len(self.opened) > 1:
            yield from lines
            return
        if tail != 0:
            yield next(lines)
        raise LostPeerError("the connection broke")


def test_the_rest_of_a_log_that_broke_off_just_before_its_process_ended_is_read() -> None:
    logs = {"ps-0": [*log({"time": 1.0}, {"time": 2.0}), "last words"]}
    platform = Broken([member("ps")], [ended("ps", 0, 70)], logs=logs)
    assert [line for _, line in fleet_logs(platform, "small", "ps-0", follow=True)] == logs["ps-0"]
    assert platform.opened == [(0.0, True), (1.0, False)]


def test_a_tail_reads_the_rest_of_a_log_that_broke_off_just_before_its_process_ended() -> None:
    platform = Broken([], logs={"chief": log({"step": 1, "time": 1.0}, {"step": 2, "time": 2.0})})
    tail = Tail(platform)
    tail.follow(member("chief"))
    assert steps(tail, 1) == [1]
    over = ended("chief", 0, 70)
    tail.follow(over)
    assert steps(tail, 1) == [2]
    tail.follow(over)
    assert (tail.is_over, tail.entries(), len(platform.opened)) == (True, [], 2), "only once"


def test_a_log_cut_to_its_last_lines_is_not_followed_by_its_history_where_it_broke_off() -> None:
    new = log({"time": time.time() + 3600})
    platform = Broken([member("ps")], [ended("ps")], logs={"ps-0": [*log({"time": 1.0}), "old", *new]})
    assert [line for _, line in fleet_logs(platform, "small", "ps-0", follow=True, tail=0)] == new


@pytest.mark.parametrize("own", [{"time": "10:00"}, {"time": None}, {"time": 1.0}, {"time": 1e12, "level": "info"}])
def test_a_line_of_a_program_that_has_a_time_of_its_own_is_a_line_like_any_other(own: dict[str, Any]) -> None:
    first, second = log({"step": 1, "time": 2.0}, {"step": 2, "time": 3.0})
    program = json.dumps(own)
    platform = ScriptedPlatform([], logs={"chief": [first, program]})
    tail = Tail(platform)
    tail.follow(member("chief"))
    assert steps(tail, 1) == [1]
    platform._logs = {"chief": [first, program, second]}
    tail.follow(member("chief"))
    assert steps(tail, 1) == [2]
