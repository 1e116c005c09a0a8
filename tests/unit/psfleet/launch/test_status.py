"""What `psfleet status` shows of a fleet."""

from __future__ import annotations

import pytest
from support.scripted_platform import ScriptedPlatform, ended, log, member

from psfleet.errors import UsageError
from psfleet.job.activity import SERVICE
from psfleet.launch.logs import fleet_logs
from psfleet.launch.platform import Member
from psfleet.launch.status import TaskStatus, standing_statuses, statuses

TABLE = {
    "event": "fleet",
    "step": 40,
    "ps": [{"index": 0, "step": 40, "rate": 8.0, "alive": True, "restarts": 0, "last_event": ""}],
    "workers": [
        {"index": 0, "role": "chief", "address": "host-chief:2222", "step": 40, "rate": 80.0, "restarts": 0,
         "last_event": ""},
        {"index": 2, "role": "spare", "address": "host-w:2222", "step": 39, "rate": 79.0, "restarts": 1,
         "last_event": "restarted: it was killed"},
    ],
}  # fmt: skip
WORKER = member("worker", None, name="w-1", host="host-w")


def rows(*found: Member, **logs: list[str]) -> dict[str, TaskStatus]:
    """By role."""
    platform = ScriptedPlatform(found, logs={name.replace("_", "-"): lines for name, lines in logs.items()})
    return {task.role: task for task in statuses(platform, "small")}


def test_steps_rates_and_restarts_come_from_the_newest_table_in_the_chiefs_log() -> None:
    old = {**TABLE, "ps": [{**TABLE["ps"][0], "step": 1}]}  # type: ignore[index,dict-item]
    lines = [*log(old), "not json", *log(TABLE), *log({"event": "fleet", "workers": [{"name": "of the program"}]})]
    found = rows(member("ps"), member("loader"), member("chief"), WORKER, member("tensorboard", None), chief=lines)
    assert {role: (task.index, task.step, task.rate) for role, task in found.items()} == {
        "ps": (0, 40, 8.0),
        "loader": (0, None, None),
        "chief": (0, 40, 80.0),
        "spare": (2, 39, 79.0),
        "tensorboard": (None, None, None),
    }
    assert (found["spare"].restarts, found["spare"].last_event) == (1, "restarted: it was killed")


def test_a_worker_that_is_in_no_table_has_the_index_that_it_logged_or_none() -> None:
    own = ({"role": "worker", "index": index} for index in (-1, 3))
    assert rows(member("chief"), WORKER, w_1=log(*own))["worker"].index == 3
    assert rows(member("chief"), WORKER)["worker"].index is None


@pytest.mark.parametrize("index", [None, "first", 7])
def test_an_index_in_the_log_of_a_program_is_not_that_of_its_worker(index: object) -> None:
    lines = log({"index": index, "message": "of the program"}, {"role": "worker", "index": 3})
    assert rows(member("chief"), WORKER, w_1=lines)["worker"].index == 3


def test_a_member_that_failed_says_why() -> None:
    said = log({"event": "failed", "exit_code": 70, "message": "program raised ValueError"})
    assert rows(ended("worker", 1, 70), worker_1=said)["worker"].last_event == "program raised ValueError"
    assert rows(ended("worker", 1, 75), worker_1=said)["worker"].last_event == "exit code 75", "of an earlier process"
    assert rows(ended("worker", 1, 137), worker_1=said)["worker"].last_event == "killed by SIGKILL"


def test_a_problem_comes_before_a_note_and_a_note_before_the_chiefs_table() -> None:
    lines = log(TABLE)
    assert rows(member("chief"), member("worker", 2, note="x"), chief=lines)["spare"].last_event == "x"
    assert rows(member("worker", 2, note="x", problem="y"))["worker"].last_event == "y"


def test_a_fleet_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no fleet small"):
        statuses(ScriptedPlatform([]), "small")
    assert statuses(ScriptedPlatform([]), None) == []


@pytest.mark.parametrize("name", ["small", None])
def test_the_members_are_listed_once(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list takes as long as the engine or the cluster does, and a second one may have other members."""
    platform, listed = ScriptedPlatform([member("ps"), member("chief")]), []
    monkeypatch.setattr(platform, "members", lambda *asked, **_: listed.append(asked) or [member("ps")])
    for show in (statuses, standing_statuses):
        assert [task.role for task in show(platform, name)] == ["ps"]
    assert len(listed) == 2


def test_the_members_of_a_service_are_its_front_and_members() -> None:
    found = [member("chief", activity=SERVICE), member("worker", 1, activity=SERVICE)]
    assert [(each.role, each.index) for each in statuses(ScriptedPlatform(found), None)] == [
        ("front", 0),
        ("member", 1),
    ]
    platform = ScriptedPlatform(found, logs={"chief": ["a"], "worker-1": ["b"]})
    assert [*fleet_logs(platform, "small", None, follow=False)] == [("front", "a"), ("member-1", "b")]
    assert [*fleet_logs(platform, "small", "member-1", follow=False)] == [("member-1", "b")]
