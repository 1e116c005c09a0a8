"""Follows a fleet on a Docker engine to its end, and starts again what was killed from outside."""

from __future__ import annotations

import logging
import operator
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import docker
from docker.errors import NotFound

from psfleet.errors import DONE, DeadlineError, LostPeerError, StoppedError
from psfleet.launch.compose import engine
from psfleet.launch.compose.members import TRAINING, Member, chief, members, need, split
from psfleet.launch.follow import Tail, tell_traceback
from psfleet.launch.platform import Listener
from psfleet.launch.proof import STOPPED
from psfleet.polling import wait_until

logger = logging.getLogger("psfleet.launch")

T = TypeVar("T")

POLL_SECS = 0.1
LOOK_SECS = 1.0
"""Between two looks at the containers."""
LEAVE_SECS = 15.0
"""How long every container may take to end once the chief has, or once one has failed for good."""
STOPPED_SECS = 15.0
"""How long a chief that was stopped stays so before that is taken for the end of the run."""
ENGINE_SECS = 120.0
"""How long the engine may be away; its restart takes about ten seconds."""
FROM_THE_BEGINNING = 1.0
"""In seconds since 1970."""


class TakenDownError(StoppedError):
    """The fleet's containers were removed while it was followed."""

    def __init__(self, name: str) -> None:
        super().__init__(signal.SIGTERM)
        self.args = (f"fleet {name} was taken down; `psfleet up` goes on from its newest checkpoint",)


class Watch:
    """One fleet, from now to its end."""

    def __init__(self, client: docker.DockerClient, name: str, listener: Listener) -> None:
        self._client = client
        self._name = name
        self._listener = listener
        self._tail: Tail | None = None
        self._opened = 0.0
        self._told = 0.0
        self._failure: dict[str, Any] = {}
        self._started: Counter[str] = Counter()
        self._away_since: float | None = None
        self._failed_since: float | None = None
        self._stopped_since: float | None = None

    def run(self) -> None:
        """Hands the chief's log to the listener until the run is over.

        Raises:
            UsageError: There is no such fleet.
            TakenDownError: It was taken down meanwhile.
            LostPeerError: The engine is away for too long.
        """
        need(members(self._client, self._name), self._name)
        pause = threading.Event()
        next_look = 0.0
        while True:
            self._tell()
            if time.monotonic() >= next_look:
                if self._is_over():
                    break
                next_look = time.monotonic() + LOOK_SECS
            pause.wait(POLL_SECS)
        self._tell_rest()

    def _is_over(self) -> bool:
        """One look at every container; acts on those that ended."""
        try:
            found = members(self._client, self._name)
            self._away_since = None
            leader = chief(found)
            if leader is None:
                raise TakenDownError(self._name)
            _end_restarts(found)
            self._mend(found, leader)
            self._follow(leader)
            return self._has_ended(leader) or self._has_failed(found, leader)
        except NotFound as error:
            logger.debug("gone meanwhile: %s", error)
        except engine.ERRORS as error:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > ENGINE_SECS:
                raise LostPeerError(f"the Docker engine does not answer: {error}") from error
        return False

    def _has_ended(self, leader: Member) -> bool:
        """Whether the chief has, for good.

        An engine that is shut down stops its containers while it still answers, and starts them again when it is back:
        a chief that was stopped counts once the engine is still there after a while.
        """
        if not leader.is_over or self._may_start(leader):
            self._stopped_since = None
            return False
        if leader.exit_code not in STOPPED:
            return True
        now = time.monotonic()
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since > STOPPED_SECS

    def _follow(self, leader: Member) -> None:
        """Reads the log of the chief's present process, or of its last one."""
        started = leader.time("StartedAt")
        if self._tail is None:
            self._tail = Tail(_lines(leader, since=FROM_THE_BEGINNING))
        elif self._tail.is_over and started > self._opened:
            self._tail = Tail(_lines(leader, since=started))
        elif self._tail.is_over and leader.status == "running":
            self._tail = Tail(_lines(leader, since=self._told), after=self._told)
        self._opened = started

    def _tell(self) -> bool:
        """Hands on what has come; false, so that a wait goes on."""
        for entry in self._tail.entries() if self._tail is not None else ():
            self._told = entry.get("time", self._told)
            # A process that finds that the one before it ended for good says so, too, without its traceback.
            if entry.get("event") == "failed" and (entry.get("details") or not self._failure):
                self._failure = entry
            self._listener(entry)
        return False

    def _mend(self, found: list[Member], leader: Member) -> None:
        """Starts containers again that were killed from outside, as often as the job allows."""
        for member in found:
            if (
                member.role in TRAINING
                and self._may_start(member)
                and not (leader.is_over and leader.exit_code == DONE)
            ):
                self._started[member.container.id] += 1
                self._listener(
                    {"event": "started", "message": f"{member.container.name} was killed; it is started again"}
                )
                member.container.start()

    def _may_start(self, member: Member) -> bool:
        restarts = member.restart_count + self._started[member.container.id]
        return member.was_killed_by_hand and restarts < member.job().fleet.max_restarts

    def _has_failed(self, found: list[Member], leader: Member) -> bool:
        """Whether a part that the chief waits for is gone for good; the chief is stopped if it does not end itself."""
        gone = [
            member
            for member in found
            if member.role in TRAINING
            and member.is_over
            and not self._may_start(member)
            and member.exit_code not in (DONE, *STOPPED)
        ]
        now = time.monotonic()
        if not gone:
            self._failed_since = None
            return False
        self._failed_since = self._failed_since or now
        if now - self._failed_since < LEAVE_SECS:
            return False
        self._listener({"event": "gone", "message": f"{gone[0].container.name} is gone for good: the run is stopped"})
        leader.container.stop(timeout=int(LEAVE_SECS))
        return True

    def _tell_rest(self) -> None:
        """What the chief said last, and the training program's own traceback if that is what ended the run."""
        tail = self._tail
        if tail is not None:
            _wait(lambda: self._tell() or tail.is_over, "the rest of the chief's log", done=bool)
        _wait(self._left, "every container to end", done=operator.not_)
        tell_traceback(self._failure, self._listener)

    def _left(self) -> str:
        """The containers that have not ended, with their states."""
        found = members(self._client, self._name)
        _end_restarts(found)
        left = [member for member in found if member.role in TRAINING and not member.is_over]
        return ", ".join(f"{member.container.name} ({member.status})" for member in left)


def _wait(probe: Callable[[], T], what: str, done: Callable[[T], bool]) -> None:
    """Waits for what the end of a run does not depend on."""
    try:
        wait_until(probe, LEAVE_SECS, what, done=done, poll_secs=0.2)
    except DeadlineError as error:
        logger.warning("%s", error)


def _lines(member: Member, since: float) -> Iterator[bytes]:
    """The log of one process of a container from a time of the engine's clock, to its end or the engine's."""
    try:
        yield from split(member.container.logs(stream=True, follow=True, since=since))
    except engine.ERRORS as error:
        logger.debug("the log of %s: %s", member.container.name, error)


def _end_restarts(found: list[Member]) -> None:
    """Tells Docker not to start what ended for good again and again: it would end alike each time."""
    for member in found:
        if member.status == "restarting" and member.is_over:
            member.container.update(restart_policy={"Name": "no"})
