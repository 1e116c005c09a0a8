"""Log lines as `psfleet logs` prints them: of a fleet or a local run, filtered by time, and formatted for readers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from psfleet.errors import LostPeerError, UsageError
from psfleet.launch.local.logs import run_folder_of
from psfleet.launch.local.status import not_running
from psfleet.launch.logs import UnknownTaskError
from psfleet.service.logs import EntriesAfter, as_text, parse_line

Lines = Iterator[tuple[str, str]]
"""Pairs of a task and a line."""


def local_or_else(of_fleet: Callable[[], Lines], of_folder: Callable[[Path], Lines], name: str | None) -> Lines:
    """Lines of a local run of a job that trains, or else of its fleet, or else of its local run that has ended.

    Args:
        of_fleet: Returns those of the fleet; raises UsageError or LostPeerError if there is none, and UnknownTaskError
            if there is one without the task.
        of_folder: Returns those of a run folder.
        name: Of the job; None: only the fleet's are wanted.
    """
    runs = Path("runs")
    running = None if name is None else run_folder_of(name, runs, only_running=True)
    if running is not None:
        return of_folder(running)
    try:
        return of_fleet()
    except UnknownTaskError:
        raise
    except (UsageError, LostPeerError) as error:
        if name is None:
            raise
        ended = run_folder_of(name, runs)
        if ended is None:
            raise type(error)(f"{not_running(runs, name)}, and in containers: {error}") from error
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
