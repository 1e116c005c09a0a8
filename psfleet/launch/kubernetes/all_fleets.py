"""Shows the fleets of runs and standing fleets of a namespace together."""

from __future__ import annotations

from collections.abc import Iterator

from psfleet.launch.platform import Member
from psfleet.launch.shown import ShownPlatform


class AllFleets:
    """A `ShownPlatform` with the members of two others.

    Args of the constructor:
        runs: Shows the fleets of runs.
        standing: Shows standing fleets.
    """

    def __init__(self, runs: ShownPlatform, standing: ShownPlatform) -> None:
        self.look_secs = runs.look_secs
        self._runs, self._standing = runs, standing
        # Members of standing fleets, by fleet and name.
        self._stand: set[tuple[str, str]] = set()

    @property
    def where(self) -> str:
        """See `ShownPlatform`."""
        return self._runs.where

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `ShownPlatform`."""
        standing = self._standing.members(name, with_notes)
        self._stand |= {(each.fleet, each.name) for each in standing}
        return [*self._runs.members(name, with_notes), *standing]

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `ShownPlatform`."""
        stands = (member.fleet, member.name) in self._stand
        return (self._standing if stands else self._runs).log(member, since, follow, tail)
