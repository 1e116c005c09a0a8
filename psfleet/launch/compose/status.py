"""What `psfleet status` shows of fleets on a Docker engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import docker

from psfleet.launch.compose.members import KILLED, TRAINING, Member, chief, table_of, worker_index
from psfleet.launch.compose.render import ROLE
from psfleet.launch.compose.results import ending
from psfleet.launch.platform import TaskStatus

REMEMBERED_SECS = 3600
"""How far back the engine is asked for containers that ran out of memory; it remembers its last 256 events."""
FAILURE_LINES = 50


def statuses(client: docker.DockerClient, found: Sequence[Member]) -> list[TaskStatus]:
    """A row for each container, by fleet."""
    killed = _out_of_memory(client)
    rows = []
    for fleet in dict.fromkeys(member.fleet for member in found):
        own = [member for member in found if member.fleet == fleet]
        table = table_of(chief(own))
        rows += [_status(member, table, killed.get(member.container.id)) for member in own]
    return rows


def _status(member: Member, table: Mapping[str, Any], killed_at: float | None) -> TaskStatus:
    role, index, row = _place(member, table)
    return TaskStatus(
        fleet=member.fleet,
        role=role,
        index=index,
        name=str(member.container.name),
        state=_state(member),
        health=str(member.state.get("Health", {}).get("Status", "")) if member.status == "running" else "",
        step=row.get("step"),
        rate=row.get("rate") if member.status == "running" else None,
        restarts=max(member.restart_count, row.get("restarts", 0)),
        last_event=_last_event(member, row, killed_at),
    )


def _place(member: Member, table: Mapping[str, Any]) -> tuple[str, int | None, Mapping[str, Any]]:
    """Role, index and row in the chief's table."""
    if member.role not in TRAINING:
        return member.role, None, {}
    index = member.number if member.role == "ps" else worker_index(member, table)
    rows = table.get("ps" if member.role == "ps" else "workers", ())
    row: Mapping[str, Any] = next((row for row in rows if row["index"] == index), {})
    return row.get("role", member.role), index, row


def _state(member: Member) -> str:
    if member.status in ("running", "created", "paused"):
        return member.status
    if member.is_out_of_memory:
        return "OOMKilled"
    return f"{member.status} ({member.exit_code})"


def _last_event(member: Member, row: Mapping[str, Any], killed_at: float | None) -> str:
    if member.is_out_of_memory:
        return ending(member)
    if member.status not in ("running", "created", "paused"):
        failures = [entry for entry in member.entries(FAILURE_LINES) if entry.get("event") == "failed"]
        if failures and failures[-1]["exit_code"] == member.exit_code:
            return str(failures[-1]["message"])
        return "" if member.exit_code == 0 else ending(member)
    if killed_at is not None:
        when = time.strftime("%H:%M:%S", time.localtime(killed_at))
        return f"killed at {when}: out of memory, the limit is {member.memory_bytes / (1 << 30):.2g} GiB"
    if row.get("last_event"):
        return str(row["last_event"])
    return "started again" if member.exit_code == KILLED else ""


def _out_of_memory(client: docker.DockerClient) -> dict[str, float]:
    """By container, when it last ran out of memory."""
    now = int(time.time())
    filters = {"event": "oom", "label": ROLE}
    events = client.events(since=now - REMEMBERED_SECS, until=now, decode=True, filters=filters)
    return {event["id"]: event["timeNano"] / 1e9 for event in events}
