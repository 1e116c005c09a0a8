"""Holds one encoded checkpoint part in memory, for a chief that writes the parts of all ps into its own folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ps_service.only_stream import OnlyStream
from psfleet.checkpoint.part_writing import EncodedPart
from psfleet.control.download import CHUNK_BYTES
from psfleet.errors import LostPeerError

POLL_SECS = 0.1
"""Between two looks at whether the chief is still there."""


class PartHolder:
    """The newest part of one generation, until the chief releases it or a newer part takes its place.

    While the chief fetches parts, a newer one waits for it, as for a disk. While there is no such chief, training must
    not wait, and newer parts replace older ones.

    Args of the constructor:
        is_followed: Returns whether there is a chief that fetches parts.
        on_end: Called with the step of a part that is not held any more, why (empty: the chief has fetched it), and
            whether it is the chief who says so.
    """

    def __init__(self, is_followed: Callable[[], bool], on_end: Callable[[int, str, bool], None]) -> None:
        self._is_followed = is_followed
        self._on_end = on_end
        self._changed = threading.Condition()
        self._part: tuple[int, EncodedPart] | None = None
        self._stream = OnlyStream()

    def make_room(self, closing: threading.Event) -> None:
        """Waits until the chief has released the part, has gone, or the holder is closed; ends what is still held."""
        with self._changed:
            while self._part is not None and not closing.is_set() and self._is_followed():
                self._changed.wait(POLL_SECS)
            step = None if self._part is None or closing.is_set() else self._part[0]
        if step is not None:
            self._end(step, "no chief has fetched it, and the next one is due", is_by_chief=False)

    def hold(self, step: int, part: EncodedPart) -> None:
        """Holds a part; call `make_room` before."""
        with self._changed:
            self._part = step, part

    @property
    def is_empty(self) -> bool:
        """Whether no part is held."""
        with self._changed:
            return self._part is None

    def is_held(self, step: int) -> bool:
        """Whether the part of a step is held."""
        with self._changed:
            return self._part is not None and self._part[0] == step

    @contextmanager
    def reading(self, step: int, cancel: Callable[[], object]) -> Iterator[Iterator[bytes]]:
        """Context manager for the part of a step in chunks; ends the stream before, of which there is at most one.

        Args:
            cancel: Ends this stream, from another thread: one that nobody reads would keep the part in memory.

        Raises:
            LostPeerError: It is not held.
        """
        with self._changed:
            if self._part is None or self._part[0] != step:
                raise LostPeerError(f"the checkpoint part of step {step} is not held here")
            part = self._part[1]
        with self._stream.only(cancel):
            yield part.blocks(CHUNK_BYTES)

    def end_stream(self) -> None:
        """Ends the stream of the part, which stays held."""
        self._stream.end()

    def release(self, step: int, error: str = "") -> None:
        """Drops the part of a step and ends its stream, for the chief; nothing happens if it is not held."""
        self._end(step, error, is_by_chief=True)

    def _end(self, step: int, error: str, is_by_chief: bool) -> None:
        with self._changed:
            if self._part is None or self._part[0] != step:
                return
            self._part = None
            # Before the next part can be held, and under the lock: nobody sees the part as held and not ended.
            self._on_end(step, error, is_by_chief)
            self._changed.notify_all()
        self._stream.end()

    def close(self) -> None:
        """Drops the part, and ends its stream."""
        with self._changed:
            step = None if self._part is None else self._part[0]
        if step is not None:
            self._end(step, "its generation has ended", is_by_chief=False)
