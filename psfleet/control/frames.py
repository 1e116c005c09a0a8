"""Frames, which carry the messages of a call over the stdin and stdout of a command in a container.

A frame is a mark (two bytes), a kind (one byte), the length of its content (four bytes, big endian), and the content.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from psfleet.errors import LostPeerError

MARK = b"pf"
HEADER = struct.Struct(">2sBI")
MAX_BYTES = 64 * 1024 * 1024
"""Of a frame's content: the limit of gRPC's messages on the control plane."""


class Kind(IntEnum):
    """What a frame is."""

    CALL = 1
    """First frame of the caller. JSON: `method` of RunControl, `timeout_secs` or null."""
    MESSAGE = 2
    """A message of the call, or of its answer."""
    END = 3
    """The caller has sent its last message."""
    STATUS = 4
    """Last frame of the relay. JSON: `code` of gRPC by name, `details`, and of an error `silent_secs` of the chief."""
    ALIVE = 5
    """A keepalive frame, without content."""


@dataclass(frozen=True)
class Frame:
    """One frame."""

    kind: Kind
    content: bytes = b""

    @classmethod
    def of(cls, kind: Kind, **values: Any) -> Frame:
        """A frame whose content is JSON."""
        return cls(kind, json.dumps(values).encode())

    def packed(self) -> bytes:
        """The frame as bytes.

        Raises:
            ValueError: The content is longer than `MAX_BYTES`.
        """
        if len(self.content) > MAX_BYTES:
            raise ValueError(f"a frame of {len(self.content)} bytes, expected at most {MAX_BYTES}")
        return HEADER.pack(MARK, self.kind, len(self.content)) + self.content

    def values(self) -> dict[str, Any]:
        """The content, which is JSON.

        Raises:
            LostPeerError: It is not.
        """
        try:
            return dict(json.loads(self.content))
        except (ValueError, TypeError) as error:
            raise LostPeerError(f"a frame of kind {self.kind.name} has {self.content[:80]!r}, expected JSON") from error


class Frames:
    """The frames in a stream of bytes that arrive cut anywhere."""

    def __init__(self) -> None:
        self._arrived = bytearray()

    def take(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with these bytes.

        Raises:
            LostPeerError: The bytes are not frames, or one is too long.
        """
        self._arrived += data
        while (frame := self._next()) is not None:
            yield frame

    def end(self) -> None:
        """Raises `LostPeerError` if the stream has ended within a frame."""
        if self._arrived:
            raise LostPeerError(f"the stream has ended within a frame, of which {len(self._arrived)} bytes are there")

    def _next(self) -> Frame | None:
        """The next frame; None: it is not whole."""
        if len(self._arrived) < HEADER.size:
            # Another program's output is not waited for.
            if not MARK.startswith(bytes(self._arrived[: len(MARK)])):
                raise self._foreign()
            return None
        mark, kind, length = HEADER.unpack_from(self._arrived)
        if mark != MARK or kind not in list(Kind):
            raise self._foreign()
        if length > MAX_BYTES:
            raise LostPeerError(f"a frame of {length} bytes has been announced, expected at most {MAX_BYTES}")
        if len(self._arrived) < HEADER.size + length:
            return None
        content = bytes(memoryview(self._arrived)[HEADER.size : HEADER.size + length])
        del self._arrived[: HEADER.size + length]
        return Frame(Kind(kind), content)

    def _foreign(self) -> LostPeerError:
        return LostPeerError(f"{bytes(self._arrived[:80])!r} has arrived, expected frames")
