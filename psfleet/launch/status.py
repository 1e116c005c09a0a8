"""The status of fleets, one row for each member: what the platform shows, completed from the chief's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psfleet.errors import SIGNAL_BASE, LostPeerError, UsageError
from psfleet.job.activity import shown_role
from psfleet.launch.logs import fleet_table, with_indices
from psfleet.launch.platform import Member
from psfleet.launch.shown import ShownPlatform, require
from psfleet.service.logs import last_failure

TABLES = {"ps": "ps", "chief": "workers", "worker": "workers"}
"""By role, the list in the chief's table of the fleet that has its members; loaders are not in it."""
FAILURE_LINES = 50
"""Lines at the end of a member's log in which its failure is looked for."""


@dataclass(frozen=True)
class TaskStatus:
    """One member of a fleet, as `psfleet status` shows it.

    Attributes:
        fleet, index, name, state, health: As `Member` has them.
        role: ps, loader, chief, worker or spare; tensorboard and the like for what is not part of the training.
        step: Global step of its parameters; None: not known (yet).
        rate: Examples per second of a worker, updates per second of a ps; None: not known.
        restarts: How often it was started again.
        last_event: What happened to it last, in one line; empty: nothing.
    """

    fleet: str
    role: str
    index: int | None
    name: str
    state: str
    health: str = ""
    step: int | None = None
    rate: float | None = None
    restarts: int = 0
    last_event: str = ""


def statuses(platform: ShownPlatform, name: str | None) -> list[TaskStatus]:
    """The members of a fleet, or of all fleets, by fleet.

    Raises:
        UsageError: There is no such fleet.
    """
    if name is None:
        return _rows(platform, platform.members(None, with_notes=True))
    return _rows(platform, require(platform, name, with_notes=True))


def _rows(platform: ShownPlatform, members: Sequence[Member]) -> list[TaskStatus]:
    rows = []
    for fleet in dict.fromkeys(member.fleet for member in members):
        own = [member for member in members if member.fleet == fleet]
        table = fleet_table(platform, own)
        rows += [_status(platform, member, table) for member in with_indices(platform, own, table)]
    return rows


def standing_statuses(platform: ShownPlatform, name: str | None) -> list[TaskStatus]:
    """As `statuses`, but empty if there is no such fleet."""
    return _rows(platform, platform.members(name, with_notes=True))


def container_statuses(place: ShownPlatform, name: str | None, is_optional: bool, here: str) -> list[TaskStatus]:
    """The containers of a fleet or of all; if optional, none where the platform has none or cannot be reached.

    Args:
        here: What was found on this machine, for the message; empty: that was not looked for.

    Raises:
        UsageError: There is no such fleet.
        LostPeerError: The platform does not answer.
    """
    try:
        return statuses(place, name)
    except (UsageError, LostPeerError) as error:
        if is_optional:
            return []
        if not here:
            raise
        raise type(error)(f"{here}, and in containers: {error}") from error


def _status(platform: ShownPlatform, member: Member, table: Mapping[str, Any]) -> TaskStatus:
    rows = table.get(TABLES.get(member.role, ""), ())
    row: Mapping[str, Any] = next((row for row in rows if row["index"] == member.index), {})
    return TaskStatus(
        fleet=member.fleet,
        role=row.get("role", shown_role(member.activity, member.role)),
        index=member.index,
        name=member.name,
        state=member.state,
        health=member.health,
        step=row.get("step"),
        rate=row.get("rate") if member.state == "running" else None,
        restarts=max(member.restarts, row.get("restarts", 0)),
        last_event=_last_event(platform, member, row),
    )


def _last_event(platform: ShownPlatform, member: Member, row: Mapping[str, Any]) -> str:
    if member.problem:
        return member.problem
    if member.has_failed:
        # A process that a signal ended, or that did not start, has not logged why.
        was_killed = (member.exit_code or 0) > SIGNAL_BASE or not member.started
        logged = None if was_killed else last_failure([*platform.log(member, tail=FAILURE_LINES)], member.exit_code)
        return str(logged["message"]) if logged is not None else member.cause
    return member.note or str(row.get("last_event") or "")
