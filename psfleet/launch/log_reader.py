"""The log of one member as a single stream: over restarts of the member and breaks of its connection."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from psfleet.errors import LostPeerError
from psfleet.launch.platform import Member, WatchedPlatform
from psfleet.polling import wait_until
from psfleet.service.logs import EntriesAfter, parse_line

logger = logging.getLogger("psfleet.launch")

OLD_LOG_SECS = 5.0
"""How long the log of a process that another has replaced may take to end; a broken connection may never end."""
RESTART_SECS = 120.0
"""Longest pause of a platform before it restarts a member."""


Process = tuple[str, float]
NO_PROCESS: Process = ("", 0.0)


def process_of(member: Member) -> Process:
    """Identifies the present or last process of a member: its name and start."""
    return member.name, member.started


class LogReader:
    """Opens the log of a member's processes, again where it broke off, and filters what was read before.

    Args of the constructor:
        tail: Only so many of the last lines of the first process; None: all.

    Attributes:
        process: Name and start of the process whose log was opened last.
        is_new: Whether a line of its log was not read before.
    """

    def __init__(self, platform: WatchedPlatform, tail: int | None = None) -> None:
        self._platform = platform
        self._tail = tail
        self.process = NO_PROCESS
        self.is_new = EntriesAfter(None)

    def open(self, member: Member, follow: bool, is_unfinished: bool = False) -> Iterator[str]:
        """All lines of a process that may be new.

        Args:
            is_unfinished: Whether the log that was opened last has not ended. Processes of one name may share a log,
                so that it had entries of the new process, too.
        """
        before, self.process = self.process, process_of(member)
        is_same = self.process == before
        is_shared = is_same or (is_unfinished and member.name == before[0])
        self.is_new = EntriesAfter(self.is_new.last if is_shared else None)
        since = self.is_new.last or (member.started if before != NO_PROCESS and not is_same else 0.0)
        tail, self._tail = self._tail, None
        if tail is not None:
            self.is_new.last = time.time()
        return self._platform.log(member, since=since, follow=follow, tail=tail)

    def lines(self, member: Member, follow: bool) -> Iterator[str]:
        """New lines of a process until its log ends or breaks off."""
        log = self.open(member, follow)
        try:
            yield from filter(self.is_new, log)
        except LostPeerError as error:
            logger.debug("the log of %s broke off: %s", member.name, error)


def over_restarts(platform: WatchedPlatform, member: Member, tail: int | None) -> Iterator[str]:
    """The log of a member, over its restarts; opened once more where it broke off.

    Args:
        tail: Only so many of the last lines of the present process; None: all.

    Raises:
        DeadlineError: The member ended and was not restarted in time, or the platform was away for as long.
    """
    reader = LogReader(platform, tail)
    yield from reader.lines(member, follow=True)
    pause = threading.Event()
    while True:
        # A process that has just ended may be shown as running for a moment.
        pause.wait(platform.look_secs)
        found = wait_until(partial(_next, platform, member), RESTART_SECS, f"a restart of {member.name}")
        assert found is not None
        has_ended = found.is_over and found.started <= member.started
        # The log may have broken off shortly before its process ended.
        yield from reader.lines(found, follow=not has_ended)
        if has_ended:
            return
        member = found


def _next(platform: WatchedPlatform, member: Member) -> Member | None:
    """A member once its log can be opened again, or will not grow; None while it awaits a process or the platform."""
    try:
        same = [each for each in platform.members(member.fleet) if _place(each) == _place(member)]
    except LostPeerError as error:
        logger.debug("%s", error)
        return None
    if not same:
        return replace(member, is_over=True)
    return next((m for m in same if m.is_over or m.started > member.started or _runs(m)), None)


def _runs(member: Member) -> bool:
    return bool(member.started) and member.exit_code is None


def _place(member: Member) -> tuple[str, int | None, str]:
    """Identifies a member over restarts; a worker of unknown index by its host."""
    return member.role, None if member.host else member.index, member.host


class Tail:
    """Reads the log of one process after another of a member, on a thread of its own.

    Attributes:
        is_over: Whether `entries` has returned the last entry of the present process.
    """

    def __init__(self, platform: WatchedPlatform) -> None:
        self._reader = LogReader(platform)
        self._next = NO_PROCESS
        self._next_since = 0.0
        self._is_whole = False
        self._left: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.is_over = True

    def follow(self, member: Member) -> None:
        """Opens the log of a member's process, unless it is open; again where it broke off."""
        process, has_ended = process_of(member), member.exit_code is not None
        is_same = process == self._reader.process
        if not member.started or (is_same and (self._is_whole or not self.is_over)):
            return
        if not (self.is_over or has_ended or self._is_late(process)):
            return
        # The next call returns what has arrived meanwhile.
        self._left = self.entries()
        lines = self._lines = queue.SimpleQueue()
        # Once more after its end: the log may have broken off shortly before it.
        is_rest = is_same and has_ended
        log = self._reader.open(member, follow=not is_rest, is_unfinished=not self.is_over)
        self._is_whole, self.is_over = is_rest, False
        read_into(lines, takewhile(lambda _: lines is self._lines, log))

    def _is_late(self, process: Process) -> bool:
        """Whether the log of the old process has not ended, though a new one runs for a while."""
        if process != self._next:
            self._next, self._next_since = process, time.monotonic()
        return time.monotonic() - self._next_since >= OLD_LOG_SECS

    def entries(self) -> list[dict[str, Any]]:
        """The entries since the last call."""
        found, self._left = self._left, []
        while not self._lines.empty():
            line = self._lines.get()
            self.is_over = line is None
            if line is not None and self._reader.is_new(line) and (entry := parse_line(line)) is not None:
                found.append(entry)
        return found


def read_into(lines: queue.SimpleQueue[str | None], log: Iterable[str]) -> None:
    """Starts a thread that puts each line of a log into a queue, and None at its end."""

    def read() -> None:
        try:
            for line in log:
                lines.put(line)
        except LostPeerError as error:
            logger.debug("a log broke off: %s", error)
        finally:
            lines.put(None)

    threading.Thread(target=read, name="log", daemon=True).start()
