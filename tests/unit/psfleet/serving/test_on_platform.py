"""A service in containers: awaited until it is ready, found again, and removed if it cannot start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.scripted_platform import Look, ScriptedPlatform, ended, log, member
from support.service_samples import briefly, request, with_token

from psfleet.errors import DeadlineError, LostPeerError, PsfleetError, UsageError
from psfleet.job.activity import SERVICE
from psfleet.launch.platform import Member, Request
from psfleet.launch.watcher import TakenDownError
from psfleet.serving.on_platform import MAX_RESTARTS, serve_on

FRONT = member("chief", activity=SERVICE, health="starting")
READY = replace(FRONT, health="healthy")
MEMBER = member("worker", activity=SERVICE)
DOWN = "psfleet down digits-serve --on somewhere"
FAILED = {"event": "failed", "exit_code": 70, "message": "the program raised", "details": ""}


def place(*looks: Look, made: Request | None = None, **options: Any) -> ScriptedPlatform:
    """A platform whose fleet has the activity of a request."""
    made = made or request()
    found = ScriptedPlatform(*looks, trained=made.job, **options)
    found.driven = made.activity
    return found


def test_a_new_service_is_started_and_awaited(tmp_path: Path) -> None:
    said: list[str] = []
    made = request(host="0.0.0.0", **with_token(tmp_path))
    found = place([], [FRONT, MEMBER], [READY, MEMBER], made=made)
    assert serve_on(found, made, said.append, DOWN), "this call has started it"
    assert (found.applied, found.removed) == ([made], [])
    assert said == [
        "digits: a front and 2 members in containers start",
        "without --tls-cert, tokens and queries travel in clear text",
    ]


def test_one_that_serves_is_found_although_a_member_has_failed_meanwhile() -> None:
    said: list[str] = []
    found = place([READY, replace(MEMBER, restarts=9)], logs={"worker-0": log(FAILED)})
    assert not serve_on(found, request(), said.append, DOWN)
    assert (found.applied, found.removed, said) == ([], [], [])


def test_one_that_is_found_keeps_its_token_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    made = request(**with_token(tmp_path))
    serve_on(place([READY, MEMBER], made=made), made, said.append, DOWN)
    assert said == ["digits: found, with the token that it was started with"]


def test_one_with_other_options_is_refused() -> None:
    found = place([READY, MEMBER])
    with pytest.raises(UsageError, match="fleet digits-serve runs another version of the service"):
        serve_on(found, request(replicas=2), print, DOWN)
    assert found.removed == []


@pytest.mark.parametrize("failed", [replace(MEMBER, restarts=1), ended("worker", code=70, activity=SERVICE)])
def test_a_process_that_would_fail_again_ends_a_new_service_with_its_error(failed: Member) -> None:
    found = place([], [FRONT, failed], logs={"worker-0": ["noise", *log(FAILED)]})
    with pytest.raises(PsfleetError, match="member-0 failed: the program raised") as caught:
        serve_on(found, request(), lambda text: None, DOWN)
    assert caught.value.exit_code == 70
    assert found.removed == [False]


def test_a_process_that_dies_again_and_again_ends_it_too() -> None:
    found = place([], [replace(FRONT, restarts=MAX_RESTARTS + 1), MEMBER])
    with pytest.raises(LostPeerError, match="front was started again 6 times: killed"):
        serve_on(found, request(), lambda text: None, DOWN)
    assert found.removed == [False]


def test_one_that_is_not_ready_in_time_says_how_its_processes_have_ended() -> None:
    killed = replace(MEMBER, state="CrashLoopBackOff", restarts=2, exit_code=137, cause="OOMKilled: out of memory")
    again = replace(FRONT, restarts=1, note="the port is in use")
    made = briefly(request())
    found = place([], [again, killed], made=made)
    with pytest.raises(DeadlineError) as caught:
        serve_on(found, made, lambda text: None, DOWN)
    text = "front running starting (the port is in use), member-0 CrashLoopBackOff (OOMKilled: out of memory)"
    assert str(caught.value).endswith(f"last seen: {text}")


def test_a_new_service_that_cannot_be_removed_after_its_failure_is_said_to_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = place([], [FRONT, replace(MEMBER, restarts=1)], logs={"worker-0": log(FAILED)})

    def removed(name: str, results: bool) -> bool:
        raise LostPeerError("no answer")

    monkeypatch.setattr(found, "remove", removed)
    stays = "the program raised; what was started stays, `psfleet down digits-serve --on somewhere` ends it: no answer"
    with pytest.raises(PsfleetError, match=stays) as caught:
        serve_on(found, request(), lambda text: None, DOWN)
    assert caught.value.exit_code == 70


def test_one_that_had_not_been_started_or_has_ended_is_new() -> None:
    """As after the end of a command that was killed, or after `docker stop`."""
    for left in (replace(FRONT, state="created"), ended("chief", code=143, activity=SERVICE)):
        said: list[str] = []
        found = place([left, MEMBER], [FRONT, replace(MEMBER, restarts=1)], logs={"worker-0": log(FAILED)})
        with pytest.raises(PsfleetError, match=r"member-0 failed: the program raised$"):
            serve_on(found, request(), said.append, DOWN)
        assert (said, found.removed) == (["digits: a front and 2 members in containers start"], [False])


def test_a_service_that_another_command_started_stays() -> None:
    found = place([FRONT, replace(MEMBER, restarts=1)], logs={"worker-0": log(FAILED)})
    with pytest.raises(
        PsfleetError, match=r"member-0 failed: .*; the service stays, `psfleet down digits-serve --on somewhere`"
    ):
        serve_on(found, request(), lambda text: None, DOWN)
    assert found.removed == []


def test_a_platform_that_does_not_answer_for_a_moment_ends_nothing() -> None:
    found = place([], LostPeerError("no answer"), [READY])
    serve_on(found, request(), lambda text: None, DOWN)
    assert (len(found.applied), found.removed) == (1, [])


def test_ports_of_localhost_are_published_at_its_address() -> None:
    activity = request(host="localhost").activity
    assert activity is not None
    assert activity.service is not None
    assert activity.service.host == "127.0.0.1"


def test_one_that_is_taken_down_meanwhile_is_no_failure() -> None:
    found = place([], [])
    with pytest.raises(TakenDownError, match="fleet digits-serve was taken down"):
        serve_on(found, request(), lambda text: None, DOWN)
    assert found.removed == []
