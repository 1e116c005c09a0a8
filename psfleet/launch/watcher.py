"""Follows a fleet to its end: the chief's log, restarts that the platform leaves to psfleet, the first failure."""

from __future__ import annotations

import logging
import operator
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from psfleet.errors import BUG, PERMANENT_CODES, SIGNAL_BASE, STOPPED, DeadlineError, LostPeerError, StoppedError
from psfleet.job.job import Job
from psfleet.launch.log_reader import Tail
from psfleet.launch.platform import (
    TRAINING,
    Member,
    WatchedPlatform,
    chief_of,
    gone_for_good,
    may_restart,
)
from psfleet.launch.shown import require
from psfleet.polling import wait_until
from psfleet.report.progress import Listener
from psfleet.service.logs import is_failure, parse_line

logger = logging.getLogger("psfleet.launch")

POLL_SECS = 0.1
"""Interval between two readings of the chief's log, or between two looks at members that should end."""
LEAVE_SECS = 15.0
"""How long the members may take to end after the chief, or the chief after the member whose loss ends the run."""
AWAY_SECS = 120.0
"""How long the platform may not answer; a Docker engine restarts in about ten seconds."""


class TakenDownError(StoppedError):
    """The fleet was removed while it was followed."""

    def __init__(self, name: str, activity: str = "") -> None:
        super().__init__(signal.SIGTERM)
        then = "the same command continues" if activity else "`psfleet up` continues from its newest checkpoint"
        self.args = (f"fleet {name} was taken down; {then}",)


class FleetWatcher:
    """Follows one fleet, from now to its end; without a listener it does not read the chief's log."""

    def __init__(self, platform: WatchedPlatform, job: Job, listener: Listener | None) -> None:
        self._platform = platform
        self._job = job
        self._listener = listener or (lambda entry: None)
        self._tail = Tail(platform) if listener is not None else None
        # The entry `event: failed` of the chief's log; empty: none.
        self._failure: dict[str, Any] = {}
        # Keys of the messages that `_report_once` has passed on.
        self._reported: set[object] = set()
        # By member: when it is to be restarted.
        self._restart_at: dict[str, float] = {}
        # By condition of `_has_lasted`: when it began to hold.
        self._since: dict[str, float] = {}
        # The member whose loss ended the run.
        self._gone: Member | None = None
        self._chief_code: int | None = None

    def run(self) -> Member | None:
        """Passes the chief's log entries to the listener until the run is over.

        Returns:
            The member whose loss ended the run; None if none did.

        Raises:
            UsageError: There is no such fleet.
            TakenDownError: It was removed meanwhile.
            DeadlineError: A member does not start for too long.
            LostPeerError: The platform does not answer for too long.
        """
        require(self._platform, self._job.name)
        pause = threading.Event()
        next_look = 0.0
        while True:
            self._pass_entries()
            if time.monotonic() >= next_look:
                if self.is_over():
                    break
                next_look = time.monotonic() + self._platform.look_secs
            pause.wait(POLL_SECS)
        self.finish()
        return self._gone

    def is_over(self) -> bool:
        """Looks at every member once, and restarts those that await it; whether the run is over; raises as `run`."""
        try:
            is_over = self._look()
            self._has_lasted("away", False, 0.0)
            return is_over
        except LostPeerError as error:
            if self._has_lasted("away", True, AWAY_SECS):
                raise LostPeerError(f"gave up after {AWAY_SECS:g} s: {error}") from error
            logger.debug("%s", error)
        return False

    def _look(self) -> bool:
        """Restarts members, and reports what keeps others from running; whether the run is over."""
        members = self._platform.members(self._job.name)
        chief = chief_of(members)
        if chief is None:
            raise TakenDownError(self._job.name)
        self._chief_code = chief.exit_code
        if self._tail is not None:
            self._tail.follow(chief)
        self._platform.end_restarts(members)
        if not chief.is_over or chief.exit_code in STOPPED or may_restart(chief, self._job):
            if "gone" not in self._since:
                self._restart(members)
            self._report_problems(members)
        return self._has_ended(chief) or self._is_lost(members, chief)

    def _has_ended(self, chief: Member) -> bool:
        """Whether the chief has ended and will not be restarted.

        A Docker engine that is shut down stops its containers while it still answers, and starts them again when it
        is back. So a chief that was stopped counts as ended only after `settle_secs` of the platform.
        """
        is_over = chief.is_over and not may_restart(chief, self._job)
        was_stopped = is_over and chief.exit_code in STOPPED
        has_settled = self._has_lasted("stopped", was_stopped, self._platform.settle_secs)
        return is_over and (has_settled or not was_stopped)

    def _restart(self, members: list[Member]) -> None:
        """Restarts members that await it, each after `restart_secs` of the platform, as often as the job allows."""
        now = time.monotonic()
        for member in members:
            if member.role not in TRAINING or not may_restart(member, self._job):
                continue
            if now < self._restart_at.setdefault(member.name, now + self._platform.restart_secs):
                continue
            del self._restart_at[member.name]
            was_killed = (member.exit_code or 0) > SIGNAL_BASE
            end = "was killed" if was_killed else f"ended ({member.cause})"
            text = f"{self._platform.noun} {member.name} {end}; it is started again"
            self._listener({"event": "started", "message": text})
            self._platform.restart(member)

    def _report_problems(self, members: list[Member]) -> None:
        """Reports once why members fail or do not start.

        Raises:
            DeadlineError: A member without which there is no step has not started for `deadlines.start_secs`.
        """
        for member in members:
            who = f"{self._platform.noun} {member.name}"
            if member.problem and not member.is_over:
                self._report_once(member.problem, "waits", f"{who} waits: {member.problem}")
            elif member.has_failed and member.role in TRAINING and not may_restart(member, self._job):
                # One message for all: after a permanent failure the other processes end with the same code.
                key = "permanent" if member.ends_run else (member.name, member.started)
                self._report_once(key, "member_failed", f"{who}: {member.cause}")
        waiting = _delaying(members, self._job)
        start_secs = self._job.deadlines.start_secs
        if self._has_lasted("waiting", waiting is not None, start_secs) and waiting is not None:
            what = f"every {self._platform.noun} to start"
            raise DeadlineError(what, start_secs, f"{self._platform.noun} {waiting.name}: {waiting.problem}")

    def _is_lost(self, members: list[Member], chief: Member) -> bool:
        """Whether the run has lost a member that it needs; stops the chief if it has not ended in `LEAVE_SECS`."""
        gone = gone_for_good(members, self._job)
        if not self._has_lasted("gone", gone is not None, LEAVE_SECS) or gone is None:
            return False
        self._gone = gone
        who = f"{self._platform.noun} {gone.name}"
        self._report_once("gone", "gone", f"{who} is gone for good ({gone.cause}): the run is stopped")
        if not self._platform.restarts_stopped:
            self._platform.stop(chief, LEAVE_SECS)
        return True

    def _has_lasted(self, what: str, holds: bool, secs: float) -> bool:
        """Whether a condition has held for some time without a break."""
        if not holds:
            self._since.pop(what, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(what, now) >= secs

    def _report_once(self, key: object, event: str, message: str) -> None:
        """Passes a message to the listener, unless one with the same key was passed before."""
        if key not in self._reported:
            self._reported.add(key)
            self._listener({"event": event, "message": message})

    def _pass_entries(self) -> bool:
        """Passes new entries of the chief's log to the listener; whether the log has ended."""
        if self._tail is None:
            return True
        for entry in filter(None, (parse_line(line) for _, line in self._tail.lines())):
            # A container's process that finds a permanent failure of the previous one logs it again, without traceback.
            if is_failure(entry) and (entry.get("details") or not self._failure):
                self._failure = entry
            self._listener(entry)
        return self._tail.is_over

    def finish(self) -> None:
        """Waits for the members to end; passes on the rest of the chief's log, and the traceback that ended the run."""
        _wait(self._pass_rest, "the rest of the chief's log")
        if self._gone is None or not self._platform.restarts_stopped:
            _wait(self._running, "every member to end", done=operator.not_)
        code = self._failure.get("exit_code")
        # A chief that was restarted after a bug may have ended well.
        details = self._failure.get("details")
        if details and (code in PERMANENT_CODES or code == BUG == self._chief_code):
            self._listener({"event": "traceback", "message": str(details).rstrip()})

    def _pass_rest(self) -> bool:
        """Passes on what is left of the chief's log, which may have broken off since the last look."""
        if not self._pass_entries():
            return False
        chief = chief_of(self._platform.members(self._job.name))
        if chief is not None and self._tail is not None:
            self._tail.follow(chief)
        return self._tail is None or self._tail.is_over

    def _running(self) -> str:
        """The members that have not ended, with their states; empty if all have. A Job may restart some much later."""
        members = [m for m in self._platform.members(self._job.name) if m.role in TRAINING and not m.is_over]
        running = [m for m in members if m.state == "running" or not self._platform.restarts_stopped]
        return ", ".join(f"{member.name} ({member.state})" for member in running)


def _delaying(members: Sequence[Member], job: Job) -> Member | None:
    """The member that does not start and that the run waits for; None if there is none.

    The run waits for every ps and the chief, for workers without which there is no step, and for members that need an
    action of the user. Members that a queue holds back do not count, for however long.
    """
    blocked = [m for m in members if m.role in TRAINING and m.problem and not m.is_over and not m.is_held]
    workers = [m for m in members if m.role in ("chief", "worker")]
    is_short = sum(m not in blocked for m in workers) < job.least_workers
    return next((m for m in blocked if m.needs_user or m.role != "worker" or is_short), None)


def _wait(probe: Callable[[], object], what: str, done: Callable[[object], bool] = bool) -> None:
    """Waits at most `LEAVE_SECS`. A timeout is only logged, because the result of the run does not depend on it."""
    try:
        wait_until(probe, LEAVE_SECS, what, done=done, poll_secs=POLL_SECS)
    except (DeadlineError, LostPeerError) as error:
        logger.warning("%s", error)
