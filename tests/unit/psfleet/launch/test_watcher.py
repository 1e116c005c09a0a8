"""How a fleet is followed to its end, on a platform with scripted states."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.scripted_platform import ScriptedPlatform, ended, job, killed, log, member

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.launch import watcher
from psfleet.launch.platform import Member, gone_for_good
from psfleet.launch.watcher import FleetWatcher, TakenDownError

WAIT_SECS = 10.0
ALL = [member("ps"), member("chief"), member("worker", 1), member("worker", 2)]
DONE = [ended("ps"), ended("chief"), ended("worker", 1), ended("worker", 2)]
FAILED = {"event": "failed", "time": 3.0, "exit_code": 70, "message": "raised ValueError", "details": "Traceback …\n"}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.2)
    monkeypatch.setattr(watcher, "POLL_SECS", 0.01)


def follow(platform: ScriptedPlatform, **sections: Any) -> list[Mapping[str, Any]]:
    """What the listener hears of a run that is followed to its end."""
    heard: list[Mapping[str, Any]] = []
    FleetWatcher(platform, job(**sections), heard.append).run()
    return heard


def messages(heard: list[Mapping[str, Any]]) -> list[str]:
    return [entry["message"] for entry in heard if "message" in entry]


def changed(*members: Member) -> list[Member]:
    """The fleet with some members in another state."""
    new = {one.name: one for one in members}
    return [new.get(one.name, one) for one in ALL]


def test_the_chiefs_log_is_passed_on_until_all_have_ended() -> None:
    platform = ScriptedPlatform(ALL, ALL, DONE, logs={"chief": log({"step": 1, "time": 1.0}, {"step": 2, "time": 2.0})})
    assert [entry["step"] for entry in follow(platform)] == [1, 2]
    assert platform.stopped == []


def test_the_log_of_a_restarted_chief_follows_that_of_the_one_before_it() -> None:
    logs = {("chief", 1.0): log({"step": 1, "time": 1.0}), ("chief", 5.0): log({"step": 2, "time": 5.0})}
    again = member("chief", started=5.0)
    away = changed(ended("chief", 0, 137, is_over=False))
    done = [ended("ps"), ended("chief", started=5.0), ended("worker", 1), ended("worker", 2)]
    platform = ScriptedPlatform(*[ALL] * 3, *[away] * 3, *[changed(again)] * 30, done, logs=logs)
    assert [entry["step"] for entry in follow(platform) if "step" in entry] == [1, 2]


def test_a_member_that_was_killed_from_outside_is_restarted_and_named() -> None:
    platform = ScriptedPlatform(ALL, changed(killed("worker", 1)), ALL, DONE)
    assert messages(follow(platform)) == ["container worker-1 was killed; it is started again"]
    assert platform.restarted == ["worker-1"]


def test_the_platform_is_kept_from_restarting_members_that_have_ended_for_good() -> None:
    platform = ScriptedPlatform(ALL, changed(ended("worker", 1, 70), ended("worker", 2, 75, is_over=False)))
    follow(platform)
    assert platform.ended_for_good == {"worker-1"}


def test_a_worker_whose_restarts_are_used_up_does_not_end_a_run_that_has_its_quorum() -> None:
    lost = changed(killed("worker", 1, restarts=10))
    platform = ScriptedPlatform(*[lost] * 60, DONE)
    follow(platform)
    assert (platform.restarted, platform.stopped) == ([], [])


def test_a_worker_whose_restarts_are_used_up_ends_a_run_without_a_quorum() -> None:
    lost = changed(killed("worker", 1, restarts=10), ended("worker", 2, 75))
    platform = ScriptedPlatform(lost)
    heard = follow(platform)
    assert platform.stopped == ["chief"]
    assert "container worker-1 is gone for good (killed by SIGKILL): the run is stopped" in messages(heard)


@pytest.mark.parametrize(
    ("update", "lost", "ends"),
    [
        ({"mode": "sync"}, [ended("worker", 1, 75)], None),
        ({"mode": "sync"}, [ended("worker", 1, 75), ended("worker", 2, 1)], "worker-1"),
        ({"mode": "async"}, [ended("worker", 1, 75), ended("worker", 2, 1)], None),
        ({"mode": "sync"}, [ended("worker", 1, 70)], "worker-1"),
        ({"mode": "sync"}, [ended("worker", 1, 78)], None),
        ({"mode": "sync"}, [ended("worker", 1, 78), ended("worker", 2, 75)], "worker-1"),
        ({"mode": "sync"}, [ended("chief", 0, 78)], "chief"),
        ({"mode": "sync"}, [ended("ps", 0, 75)], "ps-0"),
        ({"mode": "sync"}, [ended("ps", 0, 75, is_over=False)], None),
        ({"mode": "sync"}, [ended("ps", 0, 143), ended("worker", 1, 130)], None),
        ({"mode": "sync"}, [killed("ps", 0, restarts=9)], None),
    ],
    ids=[
        "spare-left",
        "no-quorum",
        "async",
        "permanent",
        "refused",
        "refused-no-quorum",
        "refused-chief",
        "ps",
        "restarting",
        "stopped",
        "left",
    ],
)
def test_one_rule_says_which_loss_ends_a_run(update: dict[str, Any], lost: list[Member], ends: str | None) -> None:
    gone = gone_for_good(changed(*lost), job(update=update))
    assert (gone.name if gone is not None else None) == ends


def test_a_chief_that_may_not_be_stopped_is_left_to_its_platform() -> None:
    platform = ScriptedPlatform(changed(ended("ps", 0, 75)))
    platform.restarts_stopped = True
    follow(platform)
    assert platform.stopped == []


def test_all_that_run_have_ended_when_their_logs_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """Each Job of a fleet ends on its own, and one of workers may make a pod again after the end of the run."""
    missing = ended("worker", 2, 75, is_over=False)
    late = changed(ended("chief"), ended("ps"), missing)
    platform = ScriptedPlatform(*[late] * 8, changed(ended("chief"), ended("ps"), ended("worker", 1), missing))
    platform.restarts_stopped = True
    follow(platform)
    assert [one.state for one in platform.members("small")[2:]] == ["exited (0)", "exited (75)"]
    assert not caplog.records, "nothing was waited for in vain"


def test_a_platform_that_is_away_for_a_while_ends_nothing() -> None:
    platform = ScriptedPlatform(ALL, LostPeerError("gone"), LostPeerError("gone"), ALL, DONE)
    assert follow(platform) == []


def test_a_platform_that_stays_away_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "AWAY_SECS", 0.1)
    with pytest.raises(LostPeerError, match=r"gave up after 0\.1 s: the engine is shutting down"):
        follow(ScriptedPlatform(ALL, LostPeerError("the engine is shutting down")))


@pytest.mark.parametrize("request_name", ["stop", "end_restarts", "restart"])
def test_a_platform_that_refuses_a_call_at_every_look_ends_the_command(
    request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise LostPeerError("the container cannot be changed")

    monkeypatch.setattr(watcher, "AWAY_SECS", 0.3)
    platform = ScriptedPlatform(
        changed(*([killed("worker", 1)] if request_name == "restart" else [ended("ps", 0, 75)]))
    )
    monkeypatch.setattr(platform, request_name, refuse)
    with pytest.raises(LostPeerError, match=r"gave up after 0\.3 s: the container cannot be changed"):
        follow(platform)


def test_a_log_that_broke_off_is_read_again_without_repetition() -> None:
    entries = log({"step": 1, "time": 1.0}, {"step": 2, "time": 2.0})
    platform = ScriptedPlatform(*[ALL] * 30, DONE, logs={"chief": entries})
    assert [entry["step"] for entry in follow(platform)] == [1, 2]


def test_the_rest_of_a_log_that_broke_off_after_the_last_look_is_passed_on() -> None:
    class Breaking(ScriptedPlatform):
        def log(
            self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None
        ) -> Iterator[str]:
            yield from entries[: 1 if follow else None]
            if follow:
                assert is_over.wait(WAIT_SECS)
                raise LostPeerError("the connection broke")

        def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
            found = super().members(name, with_notes)
            if found == DONE:
                is_over.set()
            return found

    entries = log({"step": 1, "time": 1.0}, {"step": 2, "time": 2.0})
    is_over = threading.Event()
    assert [entry["step"] for entry in follow(Breaking(ALL, ALL, DONE))] == [1, 2]


def test_a_log_without_an_end_is_named_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    gate = threading.Event()
    platform = ScriptedPlatform(ALL, DONE, logs={"chief": log({"step": 1, "time": 1.0})})
    platform.frozen, platform.release = {"chief"}, gate.wait
    assert [entry["step"] for entry in follow(platform)] == [1]
    gate.set()
    assert "waiting for the rest of the chief's log" in caplog.text


def test_a_member_that_outlives_the_run_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    follow(ScriptedPlatform(ALL, [ended("chief"), member("worker", 1)]))
    (record,) = caplog.records
    assert record.getMessage() == ("gave up after 0.2 s waiting for every member to end; last seen: worker-1 (running)")


def test_the_programs_traceback_comes_last_and_without_its_repetition() -> None:
    repeated = {**FAILED, "time": 4.0, "details": "", "message": "the run ended before"}
    failed = [ended(one.role, one.index, 70) for one in ALL]
    platform = ScriptedPlatform(ALL, failed, logs={"chief": log(FAILED, repeated)})
    assert follow(platform)[-1] == {"event": "traceback", "message": "Traceback …"}


def test_a_traceback_of_a_failure_that_was_survived_is_not_passed_on() -> None:
    platform = ScriptedPlatform(ALL, DONE, logs={"chief": log({**FAILED, "exit_code": 75})})
    assert [entry["event"] for entry in follow(platform)] == ["failed"]


@pytest.mark.parametrize(("code", "last"), [(0, "failed"), (1, "traceback")])
def test_a_traceback_of_a_bug_is_passed_on_only_if_the_chief_ended_with_it(code: int, last: str) -> None:
    done = changed(ended("chief", 0, code))
    platform = ScriptedPlatform(ALL, done, logs={"chief": log({**FAILED, "exit_code": 1})})
    assert [entry["event"] for entry in follow(platform) if entry["event"] != "member_failed"][-1] == last


def test_a_permanent_failure_is_named_once_however_many_follow_it() -> None:
    lost = changed(ended("worker", 1, 70), ended("worker", 2, 70))
    heard = messages(follow(ScriptedPlatform(lost, lost, DONE)))
    assert heard == ["container worker-1: exit code 70"]


def test_a_problem_that_needs_a_user_is_said_once_and_ends_the_start() -> None:
    problem = "ImagePullBackOff: no such image"
    waiting = changed(*[member("worker", index, started=0.0, problem=problem, needs_user=True) for index in (1, 2)])
    platform = ScriptedPlatform(waiting)
    heard: list[Mapping[str, Any]] = []
    with pytest.raises(DeadlineError, match="waiting for every container to start; last seen: container worker-1: Ima"):
        FleetWatcher(platform, job(deadlines={"start_secs": 0.1}), heard.append).run()
    assert messages(heard) == [f"container worker-1 waits: {problem}"]


@pytest.mark.parametrize(
    "blocked",
    [[member("ps")], [member("chief")], [member("worker", 1), member("worker", 2)]],
    ids=["ps", "chief", "quorum"],
)
def test_a_fleet_that_lacks_what_a_step_needs_has_a_deadline(blocked: list[Member]) -> None:
    problem = "Unschedulable: 0/3 nodes"
    waiting = [replace(one, state="pending", started=0.0, problem=problem) for one in blocked]
    with pytest.raises(DeadlineError, match=f"gave up after 0.1 s .* last seen: container .*: {problem}"):
        follow(ScriptedPlatform(changed(*waiting)), deadlines={"start_secs": 0.1})


@pytest.mark.parametrize("is_held", [False, True])
def test_a_spare_without_a_node_and_a_fleet_in_a_queue_have_no_deadline(is_held: bool) -> None:
    waiting = [replace(member("worker", 2), problem="Unschedulable: 0/3 nodes")]
    if is_held:
        waiting = [replace(one, problem="suspended", is_held=True) for one in ALL]
    platform = ScriptedPlatform(*[changed(*waiting)] * 50, DONE)
    platform.look_secs = 0.005
    assert len(messages(follow(platform, deadlines={"start_secs": 0.1}))) == 1


def test_a_chief_that_was_stopped_counts_once_it_stays_so() -> None:
    stopped = changed(ended("chief", 0, 143))
    platform = ScriptedPlatform(ALL, stopped, ALL, DONE, logs={"chief": log({"step": 1, "time": 1.0})})
    platform.settle_secs = 30.0
    assert [entry["step"] for entry in follow(platform)] == [1]


def test_a_fleet_that_is_removed_meanwhile_ends_the_command() -> None:
    with pytest.raises(TakenDownError, match="fleet small was taken down"):
        follow(ScriptedPlatform(ALL, []))


def test_a_fleet_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"no fleet small is in the script, expected one that .* or `serve` started"):
        follow(ScriptedPlatform([]))
