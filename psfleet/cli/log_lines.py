"""Log lines as `psfleet logs` prints them: from a time on, and for people."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from psfleet.service.logs import EntriesAfter, parse_line


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
