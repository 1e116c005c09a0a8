"""Takes the pieces of all loaders in the order of this worker's epochs, with dynamic sharding."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from psfleet.errors import DataStallError
from worker_service.batch_reader import Reading
from worker_service.dynamic_part import DynamicPart
from worker_service.joined_batches import Piece
from worker_service.loaded_data import OWN_SECS
from worker_service.pass_counts import PassKey

LOOK_SECS = 0.5
"""How often a reader that waits looks whether it is closed."""


class EpochOrder:
    """The pieces of all parts: those of one pass of each loader before those of the next.

    Args of the constructor:
        changed: Guards the parts, and is notified of their changes.
        reading: Of the reader that takes the pieces.
        start_secs: How long no loader may answer; one that has answered may take longer to give a piece.
    """

    def __init__(
        self, parts: Sequence[DynamicPart], changed: threading.Condition, reading: Reading, start_secs: float
    ) -> None:
        self._parts = parts
        self._changed = changed
        self._reading = reading
        self._start_secs = start_secs
        self._gives_up_at = time.monotonic() + min(OWN_SECS, start_secs / 2)
        self._epoch = 0
        self._turn = 0

    def pieces(self) -> Iterator[Piece]:
        """The pieces, until the reader is closed.

        Raises:
            DataStallError: All loaders were lost, or never answered, and none has answered for `start_secs`.
            Exception: A part could not be read.
        """
        while (piece := self._next()) is not None:
            yield piece

    def has_left(self, key: PassKey) -> bool:
        """Whether no further piece of a pass comes to this worker."""
        with self._changed:
            return self._parts[key.loader].has_left(key)

    def is_lost(self, key: PassKey) -> bool:
        """Whether the loader's process was lost in a pass."""
        with self._changed:
            return self._parts[key.loader].lost.get(key.process) == key.number

    def _next(self) -> Piece | None:
        lost_at: float | None = None
        while not self._reading.is_closed:
            with self._changed:
                self._give_up_absent()
                part = self._ready()
                if part is not None:
                    return part.take(self._epoch)
                if self._is_over():
                    self._epoch += 1
                    continue
                now = time.monotonic()
                awaited = [part for part in self._parts if part.is_awaited]
                lost_at = None if awaited or any(part.answers for part in self._parts) else lost_at or now
                if lost_at is not None and now - lost_at >= self._start_secs:
                    raise DataStallError(f"{self._parts[0].who} or another one to answer", self._start_secs)
                # The first piece of a loader, also of one that was started again, may take as long as the first batch.
                self._reading.opens_shard |= not awaited or any(part.newest is None for part in awaited)
                self._changed.wait(LOOK_SECS)
        return None

    def _give_up_absent(self) -> None:
        """Waits no longer for loaders that have not answered since the start: they take part from a later epoch on."""
        if time.monotonic() >= self._gives_up_at:
            for part in self._parts:
                if part.newest is None and part.is_awaited and not part.answers:
                    part.give_up()

    def _ready(self) -> DynamicPart | None:
        """The next part with a piece of the present epoch; they take turns."""
        for number in range(len(self._parts)):
            part = self._parts[(self._turn + number) % len(self._parts)]
            if part.error is not None:
                raise part.error
            if part.head is not None and part.epoch(self._epoch) <= self._epoch:
                self._turn += number + 1
                return part
        return None

    def _is_over(self) -> bool:
        """Whether the present epoch is: no part can give a piece of it, and one has a piece of a later one."""
        heads = [part.head for part in self._parts]
        is_awaited = any(part.is_awaited and part.head is None for part in self._parts)
        return any(head is not None for head in heads) and not is_awaited
