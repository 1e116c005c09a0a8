"""Logs of members: read on threads as they grow, over restarts, and printed for people."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import Any

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.launch.platform import TRAINING, Member, WatchedPlatform, chief_of
from psfleet.launch.restarts import over_restarts
from psfleet.service.logs import EntriesAfter, parse_line

logger = logging.getLogger("psfleet.launch")

TABLE_LINES = 400
"""Lines of the chief's log in which its newest table of the fleet is looked for; it writes four a second at most."""
OLD_LOG_SECS = 5.0
"""How long the log of a process that another has replaced may take to end; a broken connection may never end."""


class Tail:
    """Reads the log of one process after another of a member, on a thread of its own.

    Attributes:
        is_over: Whether `entries` has returned the last entry of the present process.
    """

    def __init__(self, platform: WatchedPlatform) -> None:
        self._platform = platform
        self._process = self._next = ("", 0.0)
        self._next_since = 0.0
        self._left: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_new = EntriesAfter(None)
        self.is_over = True

    def follow(self, member: Member) -> None:
        """Opens the log of a member's process, unless it is open; once more where it broke off."""
        process = (member.name, member.started)
        has_ended = member.exit_code is not None
        if not member.started or (process == self._process and (has_ended or not self.is_over)):
            return
        if not (self.is_over or has_ended or self._is_late(process)):
            return
        # The next call returns what has arrived meanwhile.
        self._left = self.entries()
        if process == self._process:
            self._is_new = EntriesAfter(self._is_new.last)
            since = self._is_new.last or 0.0
        else:
            since = member.started if self._process[1] else 0.0
            # Processes of one name may share a log, so that the unfinished one had entries of the new process, too.
            is_shared = not self.is_over and member.name == self._process[0]
            self._is_new = EntriesAfter(self._is_new.last if is_shared else None)
        lines = self._lines = queue.SimpleQueue()
        self._process, self.is_over = process, False
        log = self._platform.log(member, since=since, follow=True)
        read_into(lines, takewhile(lambda _: lines is self._lines, log))

    def _is_late(self, process: tuple[str, float]) -> bool:
        """Whether the log of the old process has not ended, though a new one runs for a while."""
        if process != self._next:
            self._next, self._next_since = process, time.monotonic()
        return time.monotonic() - self._next_since >= OLD_LOG_SECS

    def entries(self) -> list[dict[str, Any]]:
        """The entries since the last call."""
        found, self._left = self._left, []
        while not self._lines.empty():
            line = self._lines.get()
            self.is_over = line is None
            if line is not None and self._is_new(line) and (entry := parse_line(line)) is not None:
                found.append(entry)
        return found


def read_into(lines: queue.SimpleQueue[str | None], log: Iterable[str]) -> None:
    """Starts a thread that puts each line of a log into a queue, and None at its end."""

    def read() -> None:
        try:
            for line in log:
                lines.put(line)
        except LostPeerError as error:
            logger.debug("a log broke off: %s", error)
        finally:
            lines.put(None)

    threading.Thread(target=read, name="log", daemon=True).start()


def merge(logs: Sequence[Iterable[str]]) -> Iterator[str]:
    """The lines of several logs in the order of their arrival, until all have ended."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for log in logs:
        read_into(lines, log)
    left = len(logs)
    while left:
        line = lines.get()
        left -= line is None
        if line is not None:
            yield line


def fleet_table(platform: WatchedPlatform, members: Sequence[Member]) -> Mapping[str, Any]:
    """The newest table of the fleet in its chief's log; empty if there is none."""
    chief = chief_of(members)
    if chief is None or not chief.started:
        return {}
    entries = map(parse_line, platform.log(chief, tail=TABLE_LINES))
    tables = [entry for entry in entries if entry is not None and entry.get("event") == "fleet"]
    return tables[-1] if tables else {}


def with_indices(platform: WatchedPlatform, members: Sequence[Member], table: Mapping[str, Any]) -> list[Member]:
    """Members with the indices that workers have leased, from the chief's table or their own logs."""
    hosts = {str(row["address"]).rpartition(":")[0]: int(row["index"]) for row in table.get("workers", ())}

    def index(member: Member) -> int | None:
        if member.role != "worker" or member.index is not None:
            return member.index
        if member.host in hosts or not member.started:
            return hosts.get(member.host)
        log = platform.log(member)
        entries = map(parse_line, log)
        found = next((entry["index"] for entry in entries if entry and entry.get("index", -1) >= 0), None)
        if hasattr(log, "close"):
            log.close()
        return found

    return [replace(member, index=index(member)) for member in members]


def task_name(member: Member) -> str:
    """ps-0, chief, worker-1; a worker without an index has its container's name."""
    if member.role == "chief":
        return "chief"
    return f"{member.role}-{member.index}" if member.index is not None else f"{member.role}-of-{member.name}"


def fleet_logs(
    platform: WatchedPlatform, name: str, task: str | None, follow: bool, tail: int | None = None
) -> Iterator[tuple[str, str]]:
    """Log lines of a task or of all tasks, each with the name of its task.

    Args:
        task: ps-0, worker-1, chief; None: all.
        follow: Whether to wait for more until the fleet ends.
        tail: Only so many of the last lines of each log; None: all.

    Raises:
        UsageError: There is no such fleet, or no such task in it.
    """
    members = require(platform, name)
    members = with_indices(platform, members, fleet_table(platform, members))
    tasks = {task_name(member): member for member in members if member.role in TRAINING and member.started}
    wanted = "chief" if task == "worker-0" else task
    if wanted is not None and wanted not in tasks:
        raise UsageError(f"fleet {name} has no {task} with a log, expected one of {', '.join(sorted(tasks))}")
    chosen = tasks if wanted is None else {wanted: tasks[wanted]}

    def lines(each: str, member: Member) -> Iterator[str]:
        log = over_restarts(platform, member, tail) if follow else platform.log(member, tail=tail)
        try:
            for line in log:
                yield f"{each} {line}"
        except (LostPeerError, DeadlineError) as error:
            if not follow:
                raise
            yield f"{each} the log ends: {error}"

    logs = [lines(each, member) for each, member in chosen.items()]
    for line in merge(logs) if follow else chain.from_iterable(logs):
        each, _, text = line.partition(" ")
        yield each, text


def require(platform: WatchedPlatform, name: str) -> list[Member]:
    """The members of a fleet.

    Raises:
        UsageError: There are none.
    """
    members = platform.members(name)
    if not members:
        raise UsageError(f"no fleet {name} {platform.where}, expected one that `psfleet up` started")
    return members


def since(lines: Iterable[tuple[str, str]], start: float) -> Iterator[tuple[str, str]]:
    """Lines of tasks from a time on (seconds since 1970)."""
    is_new: defaultdict[str, EntriesAfter] = defaultdict(lambda: EntriesAfter(math.nextafter(start, 0.0)))
    return ((task, line) for task, line in lines if is_new[task](line))


def readable(task: str, line: str) -> str:
    """A log line for people: time, level, task, message; a line that is no entry as it is."""
    entry = parse_line(line)
    if entry is None or "message" not in entry:
        return f"{task} | {line}"
    when = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
    text = f"{when} {entry['level'].upper():<7} {task:<9} {entry['message']}"
    more = entry.get("traceback") or entry.get("details")
    return f"{text}\n{str(more).rstrip()}" if more else text


def pass_traceback(failure: Mapping[str, Any], listener: Callable[[Mapping[str, Any]], None]) -> None:
    """Passes on the training program's own traceback from the entry of a failed process, if it has one."""
    if failure.get("details"):
        listener({"event": "traceback", "message": str(failure["details"]).rstrip()})
