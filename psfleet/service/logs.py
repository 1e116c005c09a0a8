"""Log formats: JSON lines in services, or text for readers; plain lines on the command line."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

LATEST = 1e11
"""Seconds since 1970 beyond the year 5000; a larger number is a time in milliseconds."""
TAIL_BYTES = 1 << 18
"""End of a log in which its newest entries are looked for; the chief writes a table of a few KB each second."""

_ENTRY = '{"time": '
"""Start of each entry that `JsonFormatter` writes."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: Unix time, level, message, common fields, and the record's extras."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter; values that JSON cannot represent are converted to text."""
        return json.dumps(self.entry(record), default=str)

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        """The object that the line represents."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower(), **self._fields}
        line["message"] = record.getMessage()
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return line


class TextFormatter(JsonFormatter):
    """Formats a record as text, as `psfleet logs` does: time, level, task, message, and the lines of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        entry = self.entry(record)
        index = entry.get("index", -1)
        return as_text(f"{entry['role']}-{index}" if index >= 0 else entry["role"], entry)


def as_text(task: str, entry: Mapping[str, Any]) -> str:
    """An entry for readers, with the local time.

    Args:
        task: Name of the process: `worker-1`.
        entry: With `time`, `level` and `message`.
    """
    when = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
    text = f"{when} {entry['level'].upper():<7} {task:<9} {entry['message']}"
    more = entry.get("traceback") or entry.get("details")
    return f"{text}\n{str(more).rstrip()}" if more else text


def parse_line(line: str | bytes) -> dict[str, Any] | None:
    """Parses a line that a service logged; None for any other, since TensorFlow and training programs also print.

    A program may log JSON, too. An entry of psfleet has a `level` and a `time` in seconds since 1970, as
    `JsonFormatter` writes them; an entry whose time is a text or in milliseconds is not one. It may stand behind a
    progress bar, which has no end of line.
    """
    text = line if isinstance(line, str) else line.decode(errors="replace")
    try:
        entry = json.loads(text[max(0, text.find(_ENTRY)) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("level"), str):
        return None
    when = entry.get("time")
    return entry if isinstance(when, float) and 0 < when < LATEST else None


def tail(log: Path) -> list[str]:
    """The last lines of a log, `TAIL_BYTES` at most: that of a process which runs for months does not fit into memory.

    The first line may be the end of one.

    Raises:
        OSError: The log is missing or cannot be read.
    """
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def is_event(entry: Mapping[str, Any], event: str, *fields: str) -> bool:
    """Whether an entry is psfleet's own of an event: a program's of the same name lacks some of psfleet's fields."""
    return entry.get("event") == event and set(fields) <= entry.keys()


def is_failure(entry: Mapping[str, Any]) -> bool:
    """Whether an entry says how a process of psfleet failed."""
    return is_event(entry, "failed", "exit_code", "message")


def last_failure(lines: Sequence[str], exit_code: int | None) -> dict[str, Any] | None:
    """The entry `event: failed` (`message`, `exit_code`, `details`) of a process; None if it logged none.

    Args:
        lines: The end of the process's log; it may begin with lines of earlier processes.
        exit_code: Exit code of the process. An entry with another one is of an earlier process.
    """
    entries = filter(None, map(parse_line, reversed(lines)))
    last = next(filter(is_failure, entries), None)
    return last if last is not None and last["exit_code"] == exit_code else None


class EntriesAfter:
    """Filters the lines of a log: new are the first entry that is later than a given time, and all lines after it.

    Args of the constructor:
        after: The time in seconds since 1970; None: every line is new.

    Attributes:
        last: Time of the newest entry so far, at least `after`; None while there was no line.
    """

    def __init__(self, after: float | None) -> None:
        self.last = after
        self._after = after or 0.0
        self._is_new = after is None

    def __call__(self, line: str) -> bool:
        """Whether a line is new; must be called with each line of the log, in order."""
        entry = parse_line(line)
        when: float = entry["time"] if entry is not None else 0.0
        self.last = max(self.last or 0.0, when)
        self._is_new = self._is_new or when > self._after
        return self._is_new


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the run to each record, for a process that serves several runs."""

    def __init__(self, logger: logging.Logger, run: str) -> None:
        super().__init__(logger)
        self._run = run

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """See logging.LoggerAdapter."""
        return msg, {**kwargs, "extra": {"run": self._run, **(kwargs.get("extra") or {})}}


def log_service(is_text: bool, **fields: Any) -> None:
    """Logs to standard output as JSON lines, each with the given fields, or as text.

    Args:
        is_text: Whether the lines are for readers.
        fields: The `role`, and run and index once they are known.
    """
    formatter = TextFormatter(**fields) if is_text else JsonFormatter(**fields)
    _install(formatter, logging.StreamHandler(sys.stdout))


def log_plain() -> None:
    """Logs warnings and errors to standard error as plain lines."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    formatter.converter = time.localtime
    _install(formatter, logging.StreamHandler(sys.stderr), level=logging.WARNING)


def _install(formatter: logging.Formatter, handler: logging.Handler, level: int = logging.INFO) -> None:
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("psfleet").setLevel(level)
