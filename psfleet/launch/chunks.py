"""A file over a download that comes in chunks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any


class Chunks(io.RawIOBase):
    """Reads chunks, none of them empty, to their end; wrap it into an `io.BufferedReader`."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        self._rest = self._rest or next(self._chunks, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
