"""Reads logs of services as they grow: from a file, or as an engine or a cluster sends them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from psfleet.errors import PERMANENT_CODES
from psfleet.launch.local.child import parse_line

Line = TypeVar("Line", str, bytes)
"""Of a log, without its end."""
TABLE_LINES = 400
"""Of the chief's log, in which the newest table of the fleet is looked for; it writes four a second at most."""


def newest_table(lines: Iterable[str] | Iterable[bytes]) -> dict[str, Any]:
    """The newest table of the fleet among lines of its chief's log; empty if there is none."""
    tables = [entry for entry in map(parse_line, lines) if entry is not None and entry.get("event") == "fleet"]
    return tables[-1] if tables else {}


def tell_traceback(failure: Mapping[str, Any], listener: Callable[[Mapping[str, Any]], None]) -> None:
    """Passes on the training program's own traceback, if a chief's last words say that this is what ended the run."""
    details = failure.get("details")
    if details and failure.get("exit_code") in PERMANENT_CODES:
        listener({"event": "traceback", "message": str(details).rstrip()})


class Follower:
    """Hands each new entry of a log to a listener."""

    def __init__(self, path: Path, listener: Callable[[Mapping[str, Any]], None]) -> None:
        self._path = path
        self._listener = listener
        self._position = 0
        self._rest = b""

    def read(self) -> None:
        """Looks at what has come since the last look; a line without its end waits for the next."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
        except FileNotFoundError:
            return
        self._position += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            entry = parse_line(line)
            if entry is not None:
                self._listener(entry)


class Tail:
    """Reads a log on a thread of its own.

    Args of the constructor:
        lines: Of the log, as they come.
        after: Entries up to this time of their own are known.

    Attributes:
        is_over: Whether `entries` has handed out the last one.
    """

    def __init__(self, lines: Iterable[str] | Iterable[bytes], after: float = 0.0) -> None:
        self.is_over = False
        self._after = after
        self._lines: queue.SimpleQueue[str | bytes | None] = queue.SimpleQueue()
        self._thread = _reading(lines, self._lines)

    def entries(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
        found = []
        while not self._lines.empty():
            line = self._lines.get()
            self.is_over = line is None
            entry = parse_line(line) if line is not None else None
            if entry is not None and entry.get("time", 0.0) > self._after:
                found.append(entry)
        return found

    def join(self, timeout_secs: float) -> None:
        """Waits for the thread, whose log somebody has ended."""
        self._thread.join(timeout_secs)


def merged(
    logs: Iterable[Iterable[Line]], close: Callable[[], None] | None = None, close_secs: float = 0.0
) -> Iterator[Line]:
    """The lines of several logs as they come, until all have ended.

    Args:
        logs: Each is read on a thread of its own.
        close: Ends the logs; called when no more lines are wanted.
        close_secs: How long each thread may take to notice.
    """
    lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
    threads = [_reading(log, lines) for log in logs]
    left = len(threads)
    try:
        while left:
            line = lines.get()
            left -= line is None
            if line is not None:
                yield line
    finally:
        if close is not None:
            close()
        for thread in threads:
            thread.join(close_secs)


def _reading(log: Iterable[Any], lines: queue.SimpleQueue[Any]) -> threading.Thread:
    """Starts a thread that puts each line of a log into a queue, and None at its end."""

    def read() -> None:
        try:
            for line in log:
                lines.put(line)
        finally:
            lines.put(None)

    thread = threading.Thread(target=read, name="log", daemon=True)
    thread.start()
    return thread
