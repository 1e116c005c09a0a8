"""Shows the fleets of runs and standing fleets of a namespace together."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from psfleet.launch.platform import Member
from psfleet.launch.shown import ShownPlatform
from psfleet.platforms.kubernetes.api import ForbiddenError

logger = logging.getLogger("psfleet.launch")


class AllFleets:
    """A `ShownPlatform` with the members of two others. Rights for runs are enough; then only these are shown.

    Args of the constructor:
        runs: Shows the fleets of runs.
        standing: Shows standing fleets.
    """

    def __init__(self, runs: ShownPlatform, standing: ShownPlatform) -> None:
        self.look_secs = runs.look_secs
        self._runs, self._standing = runs, standing
        # Members of standing fleets, by fleet and name.
        self._stand: set[tuple[str, str]] = set()
        self._is_forbidden = False

    @property
    def where(self) -> str:
        """See `ShownPlatform`."""
        return self._runs.where

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `ShownPlatform`."""
        runs, standing = self._runs.members(name, with_notes), self._standing_members(name, with_notes)
        self._stand |= {(each.fleet, each.name) for each in standing}
        return [*runs, *standing]

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `ShownPlatform`."""
        stands = (member.fleet, member.name) in self._stand
        return (self._standing if stands else self._runs).log(member, since, follow, tail)

    def _standing_members(self, name: str | None, with_notes: bool) -> list[Member]:
        """Those of standing fleets; without the rights to list them none, of which a warning is logged once."""
        try:
            return self._standing.members(name, with_notes)
        except ForbiddenError as error:
            if not self._is_forbidden:
                logger.warning("standing fleets are not shown: %s; k8s/rbac.yaml has the rights", error)
            self._is_forbidden = True
            return []
