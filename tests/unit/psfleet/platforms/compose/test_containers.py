"""Containers as members of a fleet, and what the platform makes of an engine that shows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError
from support.compose_samples import container

from psfleet.errors import BadJobError, LostPeerError
from psfleet.launch.log_reader import lines_of
from psfleet.launch.platform import Member
from psfleet.platforms.compose.containers import member_of, seconds
from psfleet.platforms.compose.platform import Compose


def member(role: str, **state: Any) -> Member:
    """A container in a state, as a member."""
    return member_of(container(role, State=state))


def platform(*found: Any, oom: tuple[str, ...] = ()) -> Compose:
    """A platform on an engine with these containers, some of which ran out of memory."""
    events = [{"id": name, "timeNano": 1_700_000_000_000_000_000} for name in oom]
    listing = SimpleNamespace(
        list=lambda **query: list(found), get=lambda name: next(each for each in found if each.name == name)
    )
    compose = Compose()
    compose.__dict__["_client"] = SimpleNamespace(containers=listing, events=lambda **query: iter(events))
    return compose


def test_a_container_that_runs_is_a_member_with_the_start_of_its_process() -> None:
    found = member("ps", Health={"Status": "healthy"})
    assert (found.fleet, found.role, found.index, found.name) == ("small", "ps", 0, "psfleet-small-ps-0-1")
    assert (found.state, found.health, found.exit_code, found.is_over) == ("running", "healthy", None, False)
    assert found.started == found.created + 60


def test_a_process_that_has_failed_for_good_and_waits_is_shown_as_failed_with_the_reason() -> None:
    def checked(start: str, output: str) -> dict[str, str]:
        return {"Start": start, "Output": output}

    before = checked("2026-11-20T09:59:59.123456789+00:00", "failed with exit code 64: of the process before")
    now = checked("2026-11-20T10:00:05.123456789+00:00", "failed with exit code 78: TLS: it expired\n")
    found = member("ps", Health={"Status": "starting", "Log": [before, now]})
    assert (found.state, found.exit_code, found.cause, found.is_over) == ("failed (78)", 78, "TLS: it expired", True)
    assert found.has_failed
    for log in ([before], [before, checked(now["Start"], "no response on port 2223")], None):
        assert member("ps", Health={"Status": "starting", "Log": log}).state == "running"


def test_a_worker_is_known_by_its_host_until_its_index_is() -> None:
    found = member("worker")
    assert (found.index, found.host) == (None, "host-worker")
    assert (member("chief").index, member("chief").host, member("tensorboard").index) == (0, "", None)


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
    ("state", "awaits_restart"),
    [
        ({"Status": "exited", "ExitCode": 137}, True),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, False),
        ({"Status": "exited", "ExitCode": 143}, False),
        ({"Status": "restarting", "ExitCode": 137}, False),
    ],
)
def test_only_docker_kill_leaves_a_restart_to_psfleet(state: dict[str, Any], awaits_restart: bool) -> None:
    assert member("worker", **state).awaits_restart is awaits_restart


@pytest.mark.parametrize(
    ("state", "shown", "cause"),
    [
        ({"ExitCode": 0}, "exited (0)", ""),
        ({"ExitCode": 70}, "exited (70)", "exit code 70"),
        ({"ExitCode": 137}, "exited (137)", "killed by SIGKILL"),
        ({"ExitCode": 255}, "exited (255)", "exit code 255"),
        ({"ExitCode": 168}, "exited (168)", "exit code 168"),
        ({"ExitCode": 137, "OOMKilled": True}, "OOMKilled", "OOMKilled: out of memory, the limit is 1 GiB"),
        ({"ExitCode": 128, "Error": "port is taken"}, "exited (128)", "did not start: port is taken"),
    ],
)
def test_the_end_of_a_process_has_its_cause(state: dict[str, Any], shown: str, cause: str) -> None:
    found = member("worker", Status="exited", **state)
    assert (found.state, found.cause) == (shown, cause)


def test_a_container_that_was_never_started_has_no_process() -> None:
    found = member("worker", Status="created", StartedAt="0001-01-01T00:00:00Z")
    assert (found.state, found.started, found.exit_code) == ("created", 0.0, None)


def test_a_container_that_runs_again_is_noted_to_have_been_out_of_memory() -> None:
    (found,) = platform(container("worker"), oom=("id-worker",)).members("small", with_notes=True)
    assert found.state == "running"
    assert found.note.startswith("killed at ")
    assert "out of memory, the limit is 1 GiB" in found.note


def test_members_come_as_ps_chief_and_workers() -> None:
    found = platform(*map(container, ("tensorboard", "worker", "chief", "ps"))).members("small")
    assert [each.role for each in found] == ["ps", "chief", "worker", "tensorboard"]


def test_docker_no_longer_restarts_what_has_ended_for_good_once_it_is_asked_to() -> None:
    policies = []
    broken = container("worker", State={"Status": "restarting", "ExitCode": 70})
    broken.update = lambda restart_policy: policies.append(restart_policy)
    compose = platform(broken, container("chief"), container("ps", State={"Status": "restarting", "ExitCode": 75}))
    members = compose.members("small", with_notes=True)
    assert policies == [], "a look at a fleet changes nothing"
    compose.end_restarts(members)
    assert policies == [{"Name": "no"}]


def test_a_restart_by_psfleet_counts() -> None:
    dead = container("worker", State={"Status": "exited", "ExitCode": 137})
    dead.start = lambda: None
    compose = platform(dead)
    (before,) = compose.members("small")
    compose.restart(before)
    assert [each.restarts for each in compose.members("small")] == [before.restarts + 1]


@pytest.mark.parametrize("environment", [[], ["PSFLEET_JOB"], ["PSFLEET_JOB={"], ["PSFLEET_JOB=[]"], None])
def test_a_fleet_whose_job_is_damaged_is_a_bad_job(environment: list[str] | None) -> None:
    chief = container("chief", Config={"Hostname": "host-chief", "Env": environment})
    with pytest.raises(BadJobError, match="container psfleet-small-chief-1: PSFLEET_JOB: expected a resolved job"):
        platform(chief).job("small")


def test_an_engine_that_fails_is_an_error_of_one_line() -> None:
    def fail(**query: Any) -> Any:
        raise APIError("the engine is shutting down")

    compose = platform()
    compose.__dict__["_client"].containers.list = fail
    with pytest.raises(LostPeerError, match="the Docker engine: the engine is shutting down"):
        compose.members("small")


def test_a_log_that_is_not_followed_ends_while_its_container_runs() -> None:
    found = container("worker", log="one\ntwo\n")
    assert list(platform(found).log(member_of(found))) == ["one", "two"]


def test_lines_are_whole_wherever_the_engine_cuts_them() -> None:
    assert list(lines_of([b"one\ntw", b"o\nthr", b"ee"])) == ["one", "two", "three"]


def test_the_engines_times_keep_their_fraction() -> None:
    assert seconds("1970-01-01T00:00:02.5000001Z") == pytest.approx(2.5000001)


def test_a_published_port_is_the_address_of_a_member() -> None:
    ports = {"8888/tcp": None, "6006/tcp": [{"HostIp": "127.0.0.1", "HostPort": "6009"}]}
    board = container("tensorboard", NetworkSettings={"Ports": ports})
    assert member_of(board).url == "http://127.0.0.1:6009"
    assert member_of(container("ps", NetworkSettings={"Ports": {}})).url == ""
