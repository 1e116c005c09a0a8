"""What `psfleet status` makes of containers, with an engine that is told what to say."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support import compose_samples

from psfleet.launch.compose.members import Member, chief, seconds, split, worker_index
from psfleet.launch.compose.status import statuses
from psfleet.launch.platform import TaskStatus
from psfleet.launch.status_table import show

TABLE = {
    "event": "fleet",
    "step": 40,
    "ps": [{"index": 0, "step": 40, "rate": 8.0, "alive": True, "restarts": 0, "last_event": ""}],
    "workers": [
        {"index": 0, "role": "chief", "address": "host-chief:2222", "step": 40, "rate": 80.0, "restarts": 0,
         "last_event": ""},
        {"index": 2, "role": "spare", "address": "host-worker:2222", "step": 39, "rate": 79.0, "restarts": 1,
         "last_event": "restarted: it was killed"},
    ],
}  # fmt: skip


def member(role: str, log: str = "", **state: Any) -> Member:
    """A container in a state."""
    return compose_samples.member(role, log, State=state)


def rows(*found: Member, oom: tuple[str, ...] = ()) -> dict[str, TaskStatus]:
    """By role, with an engine that remembers that containers ran out of memory."""
    events = [{"id": name, "timeNano": 1_700_000_000_000_000_000} for name in oom]
    client = SimpleNamespace(events=lambda **arguments: iter(events))
    return {task.role: task for task in statuses(client, found)}  # type: ignore[arg-type]


def test_steps_rates_and_restarts_come_from_the_newest_table_in_the_chiefs_log() -> None:
    old = {**TABLE, "ps": [{**TABLE["ps"][0], "step": 1}]}  # type: ignore[index,dict-item]
    leader = member("chief", log=json.dumps(old) + "\nnot json\n" + json.dumps(TABLE) + "\n")
    found = rows(member("ps"), leader, member("worker"), member("tensorboard"))
    assert {role: (task.index, task.step, task.rate) for role, task in found.items()} == {
        "ps": (0, 40, 8.0),
        "chief": (0, 40, 80.0),
        "spare": (2, 39, 79.0),
        "tensorboard": (None, None, None),
    }
    assert (found["spare"].restarts, found["spare"].last_event) == (1, "restarted: it was killed")


def test_a_container_without_a_row_has_no_step() -> None:
    task = rows(member("chief"), member("worker"))["worker"]
    assert (task.index, task.step, task.rate) == (None, None, None)


def test_a_worker_that_is_in_no_table_has_the_index_that_it_logged() -> None:
    joined = '{"index": -1, "message": "starts"}\n{"index": 3, "message": "joined as worker 3"}\n'
    assert worker_index(member("worker", log=joined), {}) == 3


def test_a_container_that_is_out_of_memory_says_so_with_its_limit() -> None:
    task = rows(member("worker", Status="exited", ExitCode=137, OOMKilled=True))["worker"]
    assert task.state == "OOMKilled"
    assert task.last_event == "was killed: out of memory, the limit is 1 GiB"


def test_a_container_that_runs_again_still_says_that_it_was_out_of_memory() -> None:
    task = rows(member("worker"), oom=("id-worker",))["worker"]
    assert task.state == "running"
    assert "out of memory, the limit is 1 GiB" in task.last_event


def test_a_container_that_failed_says_why() -> None:
    said = '{"event": "failed", "exit_code": 70, "message": "program raised ValueError"}\n'
    task = rows(member("worker", log=said, Status="exited", ExitCode=70))["worker"]
    assert (task.state, task.last_event) == ("exited (70)", "program raised ValueError")


@pytest.mark.parametrize(
    ("state", "is_over"),
    [
        ({"Status": "running"}, False),
        ({"Status": "exited", "ExitCode": 0}, True),
        ({"Status": "restarting", "ExitCode": 137}, False),
        ({"Status": "restarting", "ExitCode": 75}, False),
        ({"Status": "restarting", "ExitCode": 70}, True),
    ],
)
def test_a_restart_changes_nothing_only_after_a_permanent_exit_code(state: dict[str, Any], is_over: bool) -> None:
    assert member("worker", **state).is_over is is_over


@pytest.mark.parametrize(
    ("state", "was_killed"),
    [
        ({"Status": "exited", "ExitCode": 137}, True),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, False),
        ({"Status": "exited", "ExitCode": 143}, False),
        ({"Status": "restarting", "ExitCode": 137}, False),
    ],
)
def test_only_docker_kill_leaves_a_container_that_has_to_be_started(state: dict[str, Any], was_killed: bool) -> None:
    assert member("worker", **state).was_killed_by_hand is was_killed


def test_the_chief_is_found_among_members() -> None:
    leader = member("chief")
    assert chief([member("ps"), leader]) is leader
    assert chief([member("ps")]) is None


def test_lines_are_whole_wherever_the_engine_cuts_them() -> None:
    assert list(split([b"one\ntw", b"o\nthr", b"ee"])) == [b"one", b"two", b"three"]


def test_the_engines_times_keep_their_fraction() -> None:
    assert seconds("1970-01-01T00:00:02.5000001Z") == pytest.approx(2.5000001)


def test_the_table_is_plain_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskStatus("small", "ps", 0, "psfleet-small-ps-0-1", "running", "healthy", 12, 3456.78, 1, "restarted")
    show(Console(force_terminal=False, width=40), [task])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2, "a row is a line however narrow the screen is"
    assert lines[1].split() == [
        "small", "ps", "0", "running", "healthy", "12", "3,456.8", "1", "psfleet-small-ps-0-1", "restarted",
    ]  # fmt: skip


def test_no_fleet_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show(Console(force_terminal=False), [])
    assert capsys.readouterr().out == "no fleet is there\n"
