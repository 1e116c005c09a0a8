"""Reads the log of a member as one stream, although the member is restarted and the connection to its log breaks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.launch.platform import Member
from psfleet.launch.shown import ShownPlatform
from psfleet.service.logs import EntriesAfter

logger = logging.getLogger("psfleet.launch")

POLL_SECS = 0.1
OLD_LOG_SECS = 5.0
"""How long the log of a replaced process is read before that of its successor; a broken connection may never end."""
RESTART_SECS = 120.0
"""Longest pause of a platform before it restarts a member."""

Process = tuple[str, float]
"""Identifies a process of a member: `Member.name` and `Member.started`."""
NO_PROCESS: Process = ("", 0.0)


class Tail:
    """Reads the logs of the successive processes of a member, each on a separate thread; returns no line twice.

    Args of the constructor:
        tail: Only this many of the last lines of the first process; None: all.

    Attributes:
        is_over: Whether `lines` has returned the last line of the log that was opened last.
        is_whole: Whether the process of that log had ended before the log was opened, so that no line is missing.
    """

    def __init__(self, platform: ShownPlatform, tail: int | None = None) -> None:
        self._platform = platform
        self._first_lines = tail
        self._process = NO_PROCESS
        # The successor of that process, and when `follow` was first called with it (monotonic, in seconds).
        self._next = NO_PROCESS
        self._next_since = 0.0
        self._is_new = EntriesAfter(None)
        self._left: list[tuple[float, str]] = []
        self._arrived: queue.SimpleQueue[tuple[float, str | None]] = queue.SimpleQueue()
        self.is_over = True
        self.is_whole = False

    def follow(self, member: Member) -> None:
        """Opens the log of the member's process unless it is open; opens it again if it broke off.

        The log of an earlier process is read to its end first, but not for longer than `OLD_LOG_SECS`, and not once the
        new process has ended, too.
        """
        process = (member.name, member.started)
        has_ended = member.is_over or member.exit_code is not None
        is_same = process == self._process
        is_open_or_read = is_same and (self.is_whole or not self.is_over)
        if not member.started or is_open_or_read:
            return
        if not (self.is_over or has_ended or self._is_late(process)):
            return
        # The next call of `lines` returns what has arrived from the log so far.
        self._left = self.lines()
        # Processes of one name may share a log: then the open log has already returned lines of the new process.
        is_shared = is_same or (not self.is_over and member.name == self._process[0])
        is_first, self._process = self._process == NO_PROCESS, process
        self._is_new = EntriesAfter(self._is_new.last if is_shared else None)
        since = self._is_new.last or (0.0 if is_first or is_same else member.started)
        tail, self._first_lines = self._first_lines, None
        if tail is not None:
            # If this log is opened again, the lines before its last `tail` lines are not returned either.
            self._is_new.last = time.time()
        # A log that ends with its process is opened once more: it may have broken off shortly before the last line.
        self.is_whole, self.is_over = is_same and has_ended, False
        self._read(self._platform.log(member, since=since, follow=not self.is_whole, tail=tail))

    def lines(self) -> list[tuple[float, str]]:
        """The new lines since the last call, each with the time of its arrival (monotonic, in seconds)."""
        new, self._left = self._left, []
        # Not until the queue is empty: a process may log faster than its lines are read.
        for _ in range(self._arrived.qsize()):
            when, line = self._arrived.get()
            self.is_over = line is None
            if line is not None and self._is_new(line):
                new.append((when, line))
        return new

    def _is_late(self, process: Process) -> bool:
        """Whether the log of the old process is still open `OLD_LOG_SECS` after the new process was first seen."""
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
            except UsageError as error:
                logger.warning("the log of %s cannot be read: %s", self._process[0], error)
            finally:
                arrived.put((time.monotonic(), None))

        threading.Thread(target=read, name="log", daemon=True).start()


class Lines:
    """The lines of a log that arrives in chunks, which may divide a line.

    A line is put together once, when it ends: a progress bar can write into one line for hours.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def take(self, chunk: bytes) -> Iterator[str]:
        """The lines that end in a chunk."""
        first, *others = chunk.split(b"\n")
        self._rest.append(first)
        for other in others:
            yield b"".join(self._rest).decode(errors="replace")
            self._rest = [other]

    def last(self) -> Iterator[str]:
        """The last line, if it lacks its newline."""
        rest, self._rest = b"".join(self._rest), []
        if rest:
            yield rest.decode(errors="replace")


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a log that arrives in chunks; see `Lines`."""
    lines = Lines()
    for chunk in chunks:
        yield from lines.take(chunk)
    yield from lines.last()


def followed(
    platform: ShownPlatform, members: Mapping[str, Member], tail: int | None = None
) -> Iterator[tuple[str, str]]:
    """The lines of members' logs in the order of their arrival, over restarts, until all members are over.

    If a member is not restarted in `RESTART_SECS`, or the platform does not answer for as long, a last line says so.

    Args:
        members: By the names under which their lines are returned.
        tail: Only this many of the last lines of each present process; None: all.

    Yields:
        The member's name, and the line.
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


def _over_restarts(platform: ShownPlatform, member: Member, tail: int | None) -> Iterator[list[tuple[float, str]]]:
    """Yields the new lines of a member with the times of their arrival, often none, until the member is over.

    Raises:
        DeadlineError: The member ended and was not restarted in `RESTART_SECS`, or the platform did not answer for as
            long.
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


def _present(platform: ShownPlatform, member: Member) -> Member | None:
    """A member as it is now; `is_over` if the platform no longer has it. None: the platform does not answer."""
    try:
        found = [each for each in platform.members(member.fleet) if _place(each) == _place(member)]
    except LostPeerError as error:
        logger.debug("%s", error)
        return None
    return found[0] if found else replace(member, is_over=True)


def _place(member: Member) -> tuple[str, int | None, str]:
    """Identifies a member over restarts; a worker of unknown index by its host."""
    return member.role, None if member.host else member.index, member.host
