"""Reads a fleet's logs: the chief's newest table of the fleet, the indices that workers leased, the lines of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psfleet.errors import UsageError
from psfleet.job.activity import shown_role
from psfleet.launch.log_reader import followed
from psfleet.launch.platform import TRAINING, Member, chief_of
from psfleet.launch.shown import ShownPlatform, require
from psfleet.service.logs import is_event, parse_line

TABLE_LINES = 400
"""Lines of the chief's log in which its newest table of the fleet is looked for; it writes four a second at most."""


class UnknownTaskError(UsageError):
    """A fleet has no task of the name that was asked for."""


def fleet_table(platform: ShownPlatform, members: Sequence[Member]) -> Mapping[str, Any]:
    """The newest log entry `event: fleet` of the chief, a table of the fleet; empty if there is none.

    Its lists `ps` and `workers` have one row for each process: `index`, `step`, `rate`, `alive`, `restarts` and
    `last_event`; a worker's also `role` and `address` (see `worker_service/chief/fleet_status.py`).
    """
    chief = chief_of(members)
    if chief is None or not chief.started:
        return {}
    entries = map(parse_line, platform.log(chief, tail=TABLE_LINES))
    tables = [entry for entry in entries if entry is not None and is_table(entry)]
    return tables[-1] if tables else {}


def is_table(entry: Mapping[str, Any]) -> bool:
    """Whether a log entry is a table of the fleet."""
    return is_event(entry, "fleet", "ps", "workers")


def with_indices(platform: ShownPlatform, members: Sequence[Member], table: Mapping[str, Any]) -> list[Member]:
    """Members with the indices that workers have leased, from the chief's table or their own logs."""
    hosts = {str(row["address"]).rpartition(":")[0]: int(row["index"]) for row in table.get("workers", ())}

    def index(member: Member) -> int | None:
        if member.role != "worker" or member.index is not None:
            return member.index
        if member.host in hosts or not member.started:
            return hosts.get(member.host)
        entries = filter(None, map(parse_line, platform.log(member)))
        # A program can log an `index`, too, but without psfleet's `role`.
        found = (entry["index"] for entry in entries if {"role", "index"} <= entry.keys())
        return next((number for number in found if isinstance(number, int) and number >= 0), None)

    return [replace(member, index=index(member)) for member in members]


def task_name(member: Member) -> str:
    """ps-0, chief, worker-1; a worker without an index has its container's name. Of a service: front, member-0."""
    role = shown_role(member.activity, member.role)
    if member.role == "chief":
        return role
    return f"{role}-{member.index}" if member.index is not None else f"{role}-of-{member.name}"


def fleet_logs(
    platform: ShownPlatform, name: str, task: str | None, follow: bool, tail: int | None = None
) -> Iterator[tuple[str, str]]:
    """Log lines of a task or of all tasks, each with the name of its task.

    Args:
        task: ps-0, worker-1, chief; None: all.
        follow: Whether to wait for more lines until the fleet ends.
        tail: Only this many of the last lines of each log; None: all.

    Raises:
        UsageError: There is no such fleet.
        UnknownTaskError: The fleet has no such task.
    """
    members = require(platform, name)
    members = with_indices(platform, members, fleet_table(platform, members))
    tasks = {task_name(member): member for member in members if member.role in TRAINING and member.started}
    # A driver has a worker 0 beside itself.
    wanted = "chief" if task == "worker-0" and task not in tasks and "chief" in tasks else task
    if wanted is not None and wanted not in tasks:
        raise UnknownTaskError(f"fleet {name} has no {task} with a log, expected one of {', '.join(sorted(tasks))}")
    chosen = tasks if wanted is None else {wanted: tasks[wanted]}
    if follow:
        return followed(platform, chosen, tail)
    return ((each, line) for each, member in chosen.items() for line in platform.log(member, tail=tail))
