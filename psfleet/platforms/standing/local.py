"""The platform whose fleets stand as processes of this machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.launch.platform import Member
from psfleet.platforms.local.growing_log import GrowingLog
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import CLIENT, FleetFolder, find, fleet_folders, fleets_folder
from psfleet.platforms.standing.state import FAILED, RUNNING, FleetState, TaskState
from psfleet.processes.command import become_script
from psfleet.service import process_environment, settings
from psfleet.service.health import problem
from psfleet.service.logs import EntriesAfter

DOWN = "down"
POLL_SECS = 0.1


class LocalFleets:
    """A `StandingPlatform` of this user's fleets on this machine."""

    look_secs = POLL_SECS
    where = "stands on this machine"

    def up(self, file: FleetFile) -> FleetAccess:
        """See `StandingPlatform`. The section `container` is for containers."""
        return commands.up(file)

    def down(self, name: str) -> None:
        """See `StandingPlatform`."""
        commands.down(name)

    def access(self, name: str) -> FleetAccess:
        """See `StandingPlatform`."""
        return find(name).access()

    def run(self, name: str, client: Path, arguments: Sequence[str]) -> int:
        """See `StandingPlatform`; never returns."""
        credentials = find(name).credentials(CLIENT)
        own = {settings.FLEET: self.access(name).model_dump_json(), settings.TLS: str(credentials or "")}
        environment = process_environment.for_child(own)
        process_environment.prepare_tensorflow(environment)
        become_script(client, arguments, environment)

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `StandingPlatform`."""
        members = []
        for folder in fleet_folders():
            state = folder.state() if name in (None, folder.name) else None
            if state is not None:
                members += _members(folder, state)
        return members

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `StandingPlatform`. A log is followed until its process ends."""
        folder = FleetFolder(fleets_folder() / member.fleet)
        log = GrowingLog(folder.log(member.role, member.index or 0))
        is_new, pause = EntriesAfter(since or None), threading.Event()
        while True:
            is_last = not follow or not _has(folder, member)
            lines = filter(is_new, log.read(is_last))
            yield from lines if tail is None else deque(lines, maxlen=tail)
            if is_last:
                return
            # The next lines are new.
            tail = None
            pause.wait(POLL_SECS)


def _has(folder: FleetFolder, member: Member) -> bool:
    """Whether a member's process still runs, or is about to run; asks none for its health, as `members` does."""
    state = folder.state()
    if state is None or not folder.is_up():
        return False
    own = [task for task in state.tasks if (task.role, task.index) == (member.role, member.index)]
    return any(
        (_name(task, task.state), task.started) == (member.name, member.started) and task.state != FAILED
        for task in own
    )


def _members(folder: FleetFolder, state: FleetState) -> list[Member]:
    if not folder.is_up():
        return [_member(folder, task, DOWN, "`psfleet fleet up` starts it") for task in state.tasks]
    return [_member(folder, task, task.state, task.cause) for task in state.tasks]


def _member(folder: FleetFolder, task: TaskState, state: str, note: str) -> Member:
    return Member(
        fleet=folder.name,
        role=task.role,
        index=task.index,
        name=_name(task, state),
        state=state,
        started=task.started,
        restarts=task.restarts,
        is_over=state in (DOWN, FAILED),
        health=_health(folder, task) if state == RUNNING else "",
        note=note,
    )


def _name(task: TaskState, state: str) -> str:
    return f"process {task.pid}" if state == RUNNING else ""


def _health(folder: FleetFolder, task: TaskState) -> str:
    return "unhealthy" if problem(task.control_port, folder.credentials(CLIENT)) else "healthy"
