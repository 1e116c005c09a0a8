"""Reads the log of a local process while the process appends to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from psfleet.launch.log_reader import Lines

PIECE_BYTES = 1 << 20
"""Read at a time: the log of a long run does not fit into memory."""


class GrowingLog:
    """The lines of a log in the order of the file; from the start again if the next start of the run has replaced it.

    A line ends with a line feed only: the carriage returns of a progress bar are part of it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines = Lines()
        self._position = 0
        self._inode: int | None = None

    def read(self, is_last: bool) -> Iterator[str]:
        """The complete lines since the last call; an incomplete one, too, if there will be no more."""
        # The next start may have deleted it.
        with suppress(FileNotFoundError), self._file.open("rb") as log:
            status = os.fstat(log.fileno())
            # The size, too: a new file can have the inode of the one that was deleted.
            if status.st_ino != self._inode or status.st_size < self._position:
                self._inode, self._lines, self._position = status.st_ino, Lines(), 0
            log.seek(self._position)
            # Not to its present end: a process may log faster than its lines are read.
            while piece := log.read(min(PIECE_BYTES, status.st_size - self._position)):
                self._position += len(piece)
                yield from self._lines.take(piece)
        if is_last:
            yield from self._lines.last()
