"""Log lines as `psfleet logs` prints them: of a fleet or a local run, filtered by time, and formatted for readers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from psfleet.errors import LostPeerError, UsageError
from psfleet.job.job import name_of
from psfleet.launch.logs import UnknownTaskError
from psfleet.platforms.local.logs import has_logs, run_folder_of
from psfleet.platforms.local.status import not_running
from psfleet.run_folder import HOSTS, LOCAL, owner
from psfleet.service.logs import EntriesAfter, as_text, parse_line

Lines = Iterator[tuple[str, str]]
"""Pairs of a task and a line."""


@dataclass(frozen=True)
class NamedRun:
    """The run whose logs a command line asks for.

    Attributes:
        job: The name of its job.
        on: Its platform; None: none was given, or the folder is of a run on this machine.
        folder: Its run folder; None: the job was named. The folder of a run on a platform can have copies of its logs.
    """

    job: str
    on: str | None
    folder: Path | None = None


def named_run(text: str, on: str | None) -> NamedRun:
    """The run that a job file, the name of a job or a run folder stands for.

    Args:
        on: The platform of the command line; None: as the folder says.

    Raises:
        UsageError: It is none of these, or the run of the folder is on another platform or has no logs.
    """
    path = Path(text)
    found = owner(path)
    if found is None:
        return NamedRun(name_of(text, "a job file that exists, the name of a job or a run folder"), on)
    if on is not None and found.platform not in ("", on):
        raise UsageError(f"{text}: has a run on platform {found.platform}, expected one on {on}")
    if found.platform == HOSTS:
        raise UsageError(f"{text}: has a run of `psfleet task`, whose processes log to their own output")
    return NamedRun(found.name, on or (found.platform if found.platform not in ("", LOCAL) else None), path)


def lines_of(run: NamedRun, of_fleet: Callable[[], Lines], of_folder: Callable[[Path], Lines]) -> Lines:
    """Finds the log of a run, and returns its lines.

    For the name of a job it tries three places: the local run that trains, the fleet, and the local run that has ended.
    For the folder of a run on a platform it tries the fleet, and then the copies in the folder.

    Args:
        of_fleet: Returns those of the fleet; raises UsageError or LostPeerError if there is none, and UnknownTaskError
            if there is one without the task.
        of_folder: Returns those of a run folder.
    """
    runs, is_local = Path("runs"), run.on is None
    first = run.folder or run_folder_of(run.job, runs, only_running=True) if is_local else None
    if first is not None:
        return of_folder(first)
    try:
        return of_fleet()
    except UnknownTaskError:
        raise
    except (UsageError, LostPeerError) as error:
        ended = run_folder_of(run.job, runs) if is_local else run.folder
        if is_local and ended is None:
            raise type(error)(f"{not_running(runs, run.job)}, and in containers: {error}") from error
        if ended is None or not has_logs(ended):
            raise
    return of_folder(ended)


def since(lines: Iterable[tuple[str, str]], start: float) -> Iterator[tuple[str, str]]:
    """The pairs of task and line from the first entry of each task at or after `start` (seconds since 1970) on."""
    # `EntriesAfter` leaves out entries of exactly its time.
    is_new: defaultdict[str, EntriesAfter] = defaultdict(lambda: EntriesAfter(math.nextafter(start, 0.0)))
    return ((task, line) for task, line in lines if is_new[task](line))


def readable(task: str, line: str) -> str:
    """Formats a log entry as time, level, task, message; any other line is only preceded by its task."""
    entry = parse_line(line)
    if entry is None or "message" not in entry:
        return f"{task} | {line}"
    return as_text(task, entry)


def seconds(text: str) -> float:
    """Parses a duration: 30s, 5m, 2h, 1d, or a number of seconds.

    Raises:
        UsageError: The text is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None:
        raise UsageError(f"--since {text!r}: expected a number of seconds, or a number with s, m, h or d")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
