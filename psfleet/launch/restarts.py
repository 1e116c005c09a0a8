"""The log of one member as a single stream: over restarts of the member and breaks of its connection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from psfleet.errors import LostPeerError
from psfleet.launch.platform import Member, WatchedPlatform
from psfleet.polling import wait_until
from psfleet.service.logs import EntriesAfter

logger = logging.getLogger("psfleet.launch")

RESTART_SECS = 120.0
"""Longest pause of a platform before it restarts a member."""


def over_restarts(platform: WatchedPlatform, member: Member, tail: int | None) -> Iterator[str]:
    """The log of a member, over its restarts; opened once more where it broke off.

    Args:
        tail: Only so many of the last lines of the present process; None: all.

    Raises:
        DeadlineError: The member ended and was not restarted in time, or the platform was away for as long.
    """
    log = _Log(platform)
    yield from log.lines(member, tail=tail)
    pause = threading.Event()
    while True:
        # A process that has just ended may be shown as running for a moment.
        pause.wait(platform.look_secs)
        found = wait_until(partial(_next, platform, member), RESTART_SECS, f"a restart of {member.name}")
        assert found is not None
        is_new = found.started > member.started
        if found.is_over and not is_new:
            return
        member = found
        yield from log.lines(member, since=found.started) if is_new else log.rest(member)


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


class _Log:
    """The log of a member, with the time of its last entry."""

    def __init__(self, platform: WatchedPlatform) -> None:
        self._platform = platform
        self._is_new = EntriesAfter(None)

    def lines(self, member: Member, since: float = 0.0, tail: int | None = None) -> Iterator[str]:
        """Lines of a process until its log ends or breaks off."""
        self._is_new = EntriesAfter(None)
        yield from self._read(member, since, tail)

    def _read(self, member: Member, since: float, tail: int | None) -> Iterator[str]:
        try:
            yield from filter(self._is_new, self._platform.log(member, since=since, follow=True, tail=tail))
        except LostPeerError as error:
            logger.debug("the log of %s broke off: %s", member.name, error)

    def rest(self, member: Member) -> Iterator[str]:
        """Lines of the same process behind its last entry; one without a time belongs to the entry before it."""
        self._is_new = EntriesAfter(self._is_new.last)
        return self._read(member, self._is_new.last or 0.0, None)
