"""Reads a service's log as it grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from psfleet.launch.process import parse_line


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
