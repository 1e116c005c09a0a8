"""Log lines as `psfleet logs` prints them: filtered by time, and formatted for readers."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from psfleet.service.logs import EntriesAfter, parse_line


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
    when = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
    text = f"{when} {entry['level'].upper():<7} {task:<9} {entry['message']}"
    more = entry.get("traceback") or entry.get("details")
    return f"{text}\n{str(more).rstrip()}" if more else text
