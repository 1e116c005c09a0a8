"""The containers of fleets on a Docker engine, as members."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from docker.models.containers import Container

from psfleet.errors import PERMANENT_CODES, cause_of_end
from psfleet.launch.platform import KILLED, Member, out_of_memory
from psfleet.manifests.compose.render import ROLE, project

PROJECT = "com.docker.compose.project"
WORKING_DIR = "com.docker.compose.project.working_dir"
SERVICE = "com.docker.compose.service"
RESTARTING = "restarting"
"""State of a container that has ended and that Docker is about to start again."""


def member_of(container: Container, starts: int = 0, killed: float | None = None) -> Member:
    """The member that a container is, from its attributes as `docker inspect` shows them.

    Args:
        starts: How often psfleet has restarted it, which the engine does not count.
        killed: When it last ran out of memory, in seconds since 1970.
    """
    state, role = container.attrs["State"], str(container.labels[ROLE])
    status, code, is_out_of_memory = str(state["Status"]), int(state["ExitCode"]), bool(state["OOMKilled"])
    has_ended = status not in ("running", "created", "paused")
    # After a permanent exit code, a restart ends with the same one.
    is_over = status in ("exited", "dead") or (status == RESTARTING and code in PERMANENT_CODES)
    limit = f"{int(container.attrs['HostConfig']['Memory']) / (1 << 30):.2g} GiB"
    when = time.strftime("%H:%M:%S", time.localtime(killed))
    shown = "OOMKilled" if is_out_of_memory else f"{status} ({code})"
    return Member(
        fleet=str(container.labels[PROJECT]).removeprefix(project("")),
        role=role,
        index=index_of(container.labels),
        name=str(container.name),
        state=shown if has_ended else status,
        started=max(0.0, seconds(state["StartedAt"])),
        created=seconds(container.attrs["Created"]),
        exit_code=code if has_ended else None,
        cause=_cause(state, limit) if has_ended else "",
        restarts=int(container.attrs["RestartCount"]) + starts,
        is_over=is_over,
        # Docker restarts all containers but those that were killed through it.
        awaits_restart=status == "exited" and code == KILLED and not is_out_of_memory,
        health=str(state.get("Health", {}).get("Status", "")) if status == "running" else "",
        note=f"killed at {when}: out of memory, the limit is {limit}" if killed is not None else "",
        host=str(container.attrs["Config"]["Hostname"]) if role == "worker" else "",
        url=_url(container.attrs),
    )


def index_of(labels: Mapping[str, str]) -> int | None:
    """The index of a ps or of the chief; workers lease theirs, and other services have none."""
    if labels[ROLE] == "ps":
        return int(labels[SERVICE].rpartition("-")[2])
    return 0 if labels[ROLE] == "chief" else None


def _cause(state: Mapping[str, Any], memory_limit: str) -> str:
    if state["OOMKilled"]:
        return out_of_memory(memory_limit)
    return f"did not start: {state['Error']}" if state["Error"] else cause_of_end(int(state["ExitCode"]))


def seconds(text: str) -> float:
    """Converts a time of the engine (ISO 8601) to seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def _url(attributes: Mapping[str, Any]) -> str:
    """The address of the first published port; empty if there is none."""
    for published in attributes.get("NetworkSettings", {}).get("Ports", {}).values():
        for binding in published or ():
            return f"http://{binding['HostIp']}:{binding['HostPort']}"
    return ""
