"""Interface of what all platforms show, of runs and of standing fleets: members, and their logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from psfleet.errors import UsageError
from psfleet.launch.platform import Member


class ShownPlatform(Protocol):
    """The part of `WatchedPlatform` that `psfleet status` and `psfleet logs` need; its errors are those, too.

    Attributes:
        look_secs: Interval between two calls of `members` while a log is followed.
    """

    look_secs: float

    @property
    def where(self) -> str:
        """See `WatchedPlatform`."""

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `WatchedPlatform`."""

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `WatchedPlatform`."""


def require(platform: ShownPlatform, name: str, with_notes: bool = False) -> list[Member]:
    """The members of a fleet.

    Args:
        with_notes: See `WatchedPlatform.members`.

    Raises:
        UsageError: There are none.
    """
    members = platform.members(name, with_notes)
    if not members:
        raise UsageError(
            f"no fleet {name} {platform.where}, expected one that `psfleet up`, `fleet up`, `sweep` or `serve` started"
        )
    return members
