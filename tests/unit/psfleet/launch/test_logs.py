"""Logs of members: read as they grow, several at once, and over restarts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.scripted_platform import ScriptedPlatform, ended, log, member

from psfleet.errors import LostPeerError, UsageError
from psfleet.launch import log_reader
from psfleet.launch.log_reader import Tail, followed
from psfleet.launch.logs import fleet_logs
from psfleet.launch.platform import Member
from psfleet.polling import wait_until
from psfleet.service.logs import parse_line

WAIT_SECS = 10.0
"""For a thread that has nothing else to do."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "POLL_SECS", 0.01)


def entries(tail: Tail) -> list[dict[str, Any]]:
    """The entries among the new lines."""
    return [entry for _, line in tail.lines() if (entry := parse_line(line)) is not None]


def steps(tail: Tail, count: int) -> list[int]:
    """The steps of that many entries."""
    found: list[int] = []
    wait_until(
        lambda: found.extend(entry["step"] for entry in entries(tail)) or len(found),
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
    assert entries(tail) == [], "the same process again"
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
    assert [entry["step"] for entry in entries(tail)] == [1], "the last lines of the old process have time to come"
    monkeypatch.setattr("psfleet.launch.log_reader.OLD_LOG_SECS", 0.0)
    tail.follow(again)
    found = wait_until(lambda: entries(tail), WAIT_SECS, "an entry of the new process", poll_secs=0.01)
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
    assert (tail.is_over, entries(tail)) == (True, [])


def test_lines_of_several_logs_come_in_the_order_of_their_arrival_until_all_have_ended() -> None:
    class Gated(ScriptedPlatform):
        """Each line of a log waits until the test opens its member's gate."""

        def log(self, member: Member, **options: Any) -> Iterator[str]:
            for line in super().log(member):
                assert gates[member.role].acquire(timeout=WAIT_SECS)
                yield line

    gates = {"ps": threading.Semaphore(0), "chief": threading.Semaphore(0)}
    logs = {"ps-0": log({"time": 1.0}, {"time": 2.0}), "chief": log({"time": 1.5})}
    platform = Gated([ended("ps"), ended("chief")], logs=logs)
    lines = followed(platform, {"ps-0": ended("ps"), "chief": ended("chief")})
    seen = []
    for role in ("ps", "chief", "ps"):
        gates[role].release()
        seen.append(next(lines))
    assert seen == [("ps-0", logs["ps-0"][0]), ("chief", logs["chief"][0]), ("ps-0", logs["ps-0"][1])]
    for gate in gates.values():
        gate.release(10)
    assert list(lines) == []
    assert list(followed(platform, {})) == []


def test_lines_that_are_taken_together_come_in_the_order_of_their_arrival() -> None:
    class InTurn(ScriptedPlatform):
        """Two logs, each line of which waits for the one before it in the other."""

        def log(self, member: Member, **options: Any) -> Iterator[str]:
            for number in range(member.index or 0, 5, 2):
                assert not number or turns[number - 1].wait(WAIT_SECS)
                yield str(number)
                assert is_taken.wait(WAIT_SECS)
                turns[number].set()

    is_taken, turns = threading.Event(), [threading.Event() for _ in range(5)]
    first, second = ended("worker", 0), ended("worker", 1)
    lines = followed(InTurn([first, second]), {"a": first, "b": second})
    assert next(lines) == ("a", "0")
    is_taken.set()
    assert turns[-1].wait(WAIT_SECS)
    assert [next(lines)[1] for _ in range(4)] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("look", [[ended("ps", is_over=False)], LostPeerError("away")], ids=["not restarted", "away"])
def test_a_log_whose_member_is_not_restarted_in_time_ends_with_a_line_that_says_so(
    look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "RESTART_SECS", 0.2)
    platform = ScriptedPlatform([member("ps")], [member("ps")], look, logs=LOGS)
    assert list(fleet_logs(platform, "small", "ps-0", follow=True)) == [
        ("ps-0", "a"), ("ps-0", "b"), ("ps-0", "the log ends: gave up after 0.2 s waiting for a restart of ps-0"),
    ]  # fmt: skip


def test_the_log_of_a_member_that_is_removed_ends() -> None:
    platform = ScriptedPlatform([member("ps")], [member("ps")], [], logs=LOGS)
    assert [line for _, line in fleet_logs(platform, "small", "ps-0", follow=True)] == ["a", "b"]


def test_a_log_that_grows_faster_than_it_is_read_does_not_keep_its_reader() -> None:
    class Endless(ScriptedPlatform):
        def log(self, member: Member, **options: Any) -> Iterator[str]:
            while not is_enough.is_set():
                yield "noise"

    is_enough = threading.Event()
    tail = Tail(Endless([]))
    # Each line that is read lets the thread add more.
    tail._is_new = lambda line: bool(is_enough.wait(0.001)) or True  # type: ignore[assignment]
    tail.follow(member("chief"))
    reader = threading.Thread(target=tail.lines)
    reader.start()
    reader.join(WAIT_SECS)
    is_stuck = reader.is_alive()
    is_enough.set()
    assert not is_stuck


LOGS = {"ps-0": ["a", "b"], "chief": ["c"], "worker-1": ["d"]}
FLEET = [member("ps"), member("chief"), member("worker", 1), member("tensorboard", None)]


def test_logs_are_those_of_all_tasks_or_of_one_which_may_be_the_chief() -> None:
    platform = ScriptedPlatform(FLEET, logs=LOGS)
    assert list(fleet_logs(platform, "small", None, follow=False)) == [
        ("ps-0", "a"), ("ps-0", "b"), ("chief", "c"), ("worker-1", "d"),
    ]  # fmt: skip
    assert list(fleet_logs(platform, "small", "worker-0", follow=False)) == [("chief", "c")]
    assert list(fleet_logs(platform, "small", "ps-0", follow=False, tail=1)) == [("ps-0", "b")]


def test_worker_0_of_a_fleet_that_has_no_chief_is_a_worker() -> None:
    standing = ScriptedPlatform([member("ps"), member("worker", 0)], logs={"worker-0": ["w"]})
    assert list(fleet_logs(standing, "small", "worker-0", follow=False)) == [("worker-0", "w")]


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
    assert (tail.is_over, entries(tail), len(platform.opened)) == (True, [], 2), "only once"


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
