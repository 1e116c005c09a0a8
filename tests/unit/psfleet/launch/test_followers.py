"""Several commands on one fleet: one starts it, and the last one that follows it removes it."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest
from support.scripted_platform import ScriptedPlatform, job, member

from psfleet.errors import DeadlineError
from psfleet.launch import followers
from psfleet.launch.followers import following, starting
from psfleet.launch.platform import Request
from psfleet.launch.up import start
from psfleet.service import settings

SECS = 20.0
"""Far more than anything here takes."""
FOLLOWER = """\
from types import SimpleNamespace
from psfleet.launch.followers import following
with following(SimpleNamespace(location="script"), "small"):
    print("follows", flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))


def test_of_two_commands_one_starts_a_fleet_and_the_other_one_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock the second one removes what the first one creates."""
    starts, waits = threading.Event(), threading.Event()
    tried = followers.try_lock

    class Platform(ScriptedPlatform):
        def apply(self, request: Request) -> None:
            super().apply(request)
            starts.set()
            assert waits.wait(SECS), "the second command does not wait for the first one"
            self._looks = [[member("chief")]]

    def try_lock(*arguments: Any) -> bool:
        is_held = tried(*arguments)
        if not is_held:
            waits.set()
        return is_held

    monkeypatch.setattr(followers, "try_lock", try_lock)
    platform, request = Platform([]), Request(job(), Path("job.yaml"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(start, platform, request)
        assert starts.wait(SECS)
        second = pool.submit(start, platform, request)
        first.result(SECS)
        second.result(SECS)
    assert platform.applied == [request]


def test_a_command_does_not_wait_for_ever_for_another_one_that_starts_the_fleet() -> None:
    late = job(deadlines={"start_secs": 0.1})
    with (
        starting(ScriptedPlatform([]), "small", SECS),
        pytest.raises(DeadlineError, match="waiting for another command to start fleet small"),
    ):
        start(ScriptedPlatform([]), Request(late, Path("job.yaml")))


def test_of_several_commands_that_follow_a_fleet_the_last_one_is_to_remove_it() -> None:
    platform = ScriptedPlatform([])
    with following(platform, "small") as first, following(platform, "small") as second:
        with following(platform, "small"):
            assert not first.is_last()
        assert second.is_last(), "the first one has stopped following"


def test_of_two_commands_that_end_at_the_same_time_one_is_the_last() -> None:
    platform, gate = ScriptedPlatform([]), threading.Barrier(2, timeout=SECS)

    def end() -> bool:
        with following(platform, "small") as follower:
            gate.wait()
            is_last = follower.is_last()
            gate.wait()
            return is_last

    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            assert sorted(end.result(SECS) for end in [pool.submit(end), pool.submit(end)]) == [False, True]


def test_a_command_waits_for_another_one_that_removes_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = ScriptedPlatform([])
    monkeypatch.setattr(followers, "REMOVAL_SECS", 0.1)
    with following(platform, "small") as last:
        assert last.is_last()
        with pytest.raises(DeadlineError, match="another command to remove fleet small"), following(platform, "small"):
            pytest.fail("follows a fleet that is being removed")
        with pytest.raises(DeadlineError, match="another command to remove fleet small"):
            start(platform, Request(job(), Path("job.yaml")))
    assert platform.applied == []
    with following(platform, "small"):
        pass


def test_fleets_of_other_names_and_at_other_places_are_others() -> None:
    here, there = ScriptedPlatform([]), ScriptedPlatform([])
    there.location = "another engine"
    with following(here, "small") as last, following(here, "large"), following(there, "small"):
        assert last.is_last()


def test_a_command_that_was_killed_follows_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", FOLLOWER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process, following(ScriptedPlatform([]), "small") as follower:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"follows\n"
            assert not follower.is_last()
        finally:
            process.kill()
            process.wait(SECS)
        assert follower.is_last()


def test_where_there_is_no_folder_for_locks_a_fleet_is_started_and_removed_without(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    platform = ScriptedPlatform([])
    with following(platform, "small") as follower:
        start(platform, Request(job(), Path("job.yaml")))
        assert follower.is_last()
    assert len(platform.applied) == 1


def test_a_folder_without_locks_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    platform, request = ScriptedPlatform([]), Request(job(), Path("job.yaml"))
    with following(platform, "small") as follower:
        start(platform, request)
        assert follower.is_last()
    assert platform.applied == [request]


def test_locks_are_those_that_nfs_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a share needs a file that is open for reading, and all of the lock one that is open for writing."""
    locked, operations = fcntl.flock, []

    def flock(file: IO[str], operation: int) -> None:
        kind = operation & ~fcntl.LOCK_NB
        if (kind == fcntl.LOCK_SH and not file.readable()) or (kind == fcntl.LOCK_EX and not file.writable()):
            raise OSError(errno.EBADF, "Bad file descriptor")
        operations.append(kind)
        locked(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with following(ScriptedPlatform([]), "small") as first, following(ScriptedPlatform([]), "small"):
        assert not first.is_last()
    assert {fcntl.LOCK_SH, fcntl.LOCK_EX} <= set(operations)
