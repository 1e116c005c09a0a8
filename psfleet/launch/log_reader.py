"""The log of a member as a single stream: over restarts of the member and breaks of its connection."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from psfleet.errors import DeadlineError, LostPeerError
from psfleet.launch.platform import Member, WatchedPlatform
from psfleet.service.logs import EntriesAfter

logger = logging.getLogger("psfleet.launch")

POLL_SECS = 0.1
OLD_LOG_SECS = 5.0
"""How long the log of a process that another has replaced may take to end; a broken connection may never end."""
RESTART_SECS = 120.0
"""Longest pause of a platform before it restarts a member."""

Process = tuple[str, float]
"""The present or last process of a member: its name and start."""
NO_PROCESS: Process = ("", 0.0)


class Tail:
    """Reads the log of one process after another of a member, on a thread of its own; no line twice.

    Args of the constructor:
        tail: Only so many of the last lines of the first process; None: all.

    Attributes:
        is_over: Whether `lines` has returned the last line of the present process.
        is_whole: Whether that process had ended before its log was opened, so that nothing is missing.
    """

    def __init__(self, platform: WatchedPlatform, tail: int | None = None) -> None:
        self._platform = platform
        self._first_lines = tail
        self._process = NO_PROCESS
        self._next = NO_PROCESS
        self._next_since = 0.0
        self._is_new = EntriesAfter(None)
        self._left: list[tuple[float, str]] = []
        self._arrived: queue.SimpleQueue[tuple[float, str | None]] = queue.SimpleQueue()
        self.is_over = True
        self.is_whole = False

    def follow(self, member: Member) -> None:
        """Opens the log of a member's process, unless it is open; again where it broke off."""
        process, has_ended = (member.name, member.started), member.is_over or member.exit_code is not None
        is_same = process == self._process
        if not member.started or (is_same and (self.is_whole or not self.is_over)):
            return
        if not (self.is_over or has_ended or self._is_late(process)):
            return
        # The next call returns what has arrived meanwhile.
        self._left = self.lines()
        # Processes of one name may share a log: one that has not ended had lines of the new process, too.
        is_shared = is_same or (not self.is_over and member.name == self._process[0])
        is_first, self._process = self._process == NO_PROCESS, process
        self._is_new = EntriesAfter(self._is_new.last if is_shared else None)
        since = self._is_new.last or (0.0 if is_first or is_same else member.started)
        tail, self._first_lines = self._first_lines, None
        if tail is not None:
            self._is_new.last = time.time()
        # Once more after its end: the log may have broken off shortly before it.
        self.is_whole, self.is_over = is_same and has_ended, False
        self._read(self._platform.log(member, since=since, follow=not self.is_whole, tail=tail))

    def lines(self) -> list[tuple[float, str]]:
        """The new lines since the last call, each with the time of its arrival (monotonic, in seconds)."""
        found, self._left = self._left, []
        # Those that arrive meanwhile wait for the next call: a process may log faster than they are read.
        for _ in range(self._arrived.qsize()):
            when, line = self._arrived.get()
            self.is_over = line is None
            if line is not None and self._is_new(line):
                found.append((when, line))
        return found

    def _is_late(self, process: Process) -> bool:
        """Whether the log of the old process has not ended, though a new one runs for a while."""
        if process != self._next:
            self._next, self._next_since = process, time.monotonic()
        return time.monotonic() - self._next_since >= OLD_LOG_SECS

    def _read(self, log: Iterator[str]) -> None:
        """Starts a thread that takes the lines of a log until it ends, breaks off, or another is opened."""
        arrived = self._arrived = queue.SimpleQueue()

        def read() -> None:
            try:
                for line in log:
                    if arrived is not self._arrived:
                        return
                    arrived.put((time.monotonic(), line))
            except LostPeerError as error:
                logger.debug("a log broke off: %s", error)
            finally:
                arrived.put((time.monotonic(), None))

        threading.Thread(target=read, name="log", daemon=True).start()


def followed(
    platform: WatchedPlatform, members: Mapping[str, Member], tail: int | None = None
) -> Iterator[tuple[str, str]]:
    """The logs of members over their restarts, in the order in which lines arrive, until all have ended for good.

    The last line of a member that is not restarted in time, or whose platform is away for as long, says so.

    Args:
        members: By the names under which their lines are returned.
        tail: Only so many of the last lines of each present process; None: all.
    """
    logs = {name: _over_restarts(platform, member, tail) for name, member in members.items()}
    pause = threading.Event()
    while logs:
        arrived = []
        for name, log in list(logs.items()):
            try:
                arrived += [(when, name, line) for when, line in next(log)]
            except StopIteration:
                del logs[name]
            except DeadlineError as error:
                arrived.append((time.monotonic(), name, f"the log ends: {error}"))
        yield from ((name, line) for _, name, line in sorted(arrived))
        pause.wait(POLL_SECS)


def _over_restarts(platform: WatchedPlatform, member: Member, tail: int | None) -> Iterator[list[tuple[float, str]]]:
    """The new lines of a member at each call, until it has ended for good.

    Raises:
        DeadlineError: The member ended and was not restarted in time, or the platform was away for as long.
    """
    reader = Tail(platform, tail)
    deadline = time.monotonic() + RESTART_SECS
    while not (member.is_over and (reader.is_whole or not member.started)):
        reader.follow(member)
        while not reader.is_over:
            yield reader.lines()
            deadline = time.monotonic() + RESTART_SECS
        found, next_look = None, time.monotonic() + platform.look_secs
        while found is None:
            yield []
            if time.monotonic() > deadline:
                raise DeadlineError(f"a restart of {member.name}", RESTART_SECS)
            if time.monotonic() >= next_look:
                found, next_look = _present(platform, member), time.monotonic() + platform.look_secs
        member = found


def _present(platform: WatchedPlatform, member: Member) -> Member | None:
    """A member as it is now, over if it is gone; None while the platform is away."""
    try:
        found = [each for each in platform.members(member.fleet) if _place(each) == _place(member)]
    except LostPeerError as error:
        logger.debug("%s", error)
        return None
    return found[0] if found else replace(member, is_over=True)


def _place(member: Member) -> tuple[str, int | None, str]:
    """Identifies a member over restarts; a worker of unknown index by its host."""
    return member.role, None if member.host else member.index, member.host
