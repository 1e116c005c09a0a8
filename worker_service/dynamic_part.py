"""Reads the part of one loader, which it gives to the workers that ask first, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
from tensorflow.python.eager.cancellation import CancellationManager

from psfleet.errors import LostPeerError
from worker_service.joined_batches import Piece
from worker_service.loader_stream import LoaderLostError, LoaderStream
from worker_service.loader_watch import ANSWER_SECS, Loader, LoaderWatch
from worker_service.pass_counts import PassCounts, PassKey

logger = logging.getLogger("psfleet.worker")

POLL_SECS = 0.2


class DynamicPart:
    """A thread that holds the next piece of a loader's part until it is taken, over all processes of the loader.

    All attributes are guarded by `changed`.

    Args of the constructor:
        process: Returns the name of the loader's process, or raises LostPeerError.
        stream: Returns the passes over the part if earlier processes have begun so many; its elements have the number
            of the pass first.
        size: Examples of the part; negative: unknown.
        changed: Notified of each change of an attribute.

    Attributes:
        head: The next piece; None: none has come.
        error: Why this part cannot be read; it ends the reader.
        is_awaited: Whether a piece may come: the loader was not lost, or its next process has given one.
        answers: Whether the loader has answered since it was last given up: its first piece may take long.
        newest: Pass of the newest piece; None: none has come.
        lost: By name of a process that was lost, the number of the pass that it was in.
    """

    def __init__(
        self,
        loader: Loader,
        process: Callable[[], str],
        stream: Callable[[int], LoaderStream],
        size: int,
        counts: PassCounts,
        changed: threading.Condition,
    ) -> None:
        self.head: Piece | None = None
        self.error: Exception | None = None
        self.is_awaited = True
        self.answers = False
        self.newest: PassKey | None = None
        self.lost: dict[str, int] = {}
        # The first piece of a process decides which of its passes is which epoch of this worker.
        self._is_new, self._begins_later, self._offset = True, False, 0
        self._loader = loader
        self._process = process
        self._stream = stream
        self._size = size
        self._counts = counts
        self._changed = changed
        self._is_closed = False
        self._cancellation = CancellationManager()
        threading.Thread(target=self._run, name=f"part-{loader.index}", daemon=True).start()

    @property
    def who(self) -> str:
        """The loader, for messages."""
        return f"loader {self._loader.index} at {self._loader.address.control}"

    def epoch(self, present: int) -> int:
        """This worker's epoch of the head. Under `changed`.

        Args:
            present: Its present epoch: that of the first piece of a process, or the next one if the loader was lost.
        """
        assert self.head is not None
        if self._is_new:
            self._offset = present + self._begins_later - self.head.key.number
            self._is_new = self._begins_later = False
        return self.head.key.number + self._offset

    def take(self, present: int) -> Piece:
        """The head, which is of this worker's present epoch. Under `changed`."""
        piece, self.head = self.head, None
        assert piece is not None
        self._counts.place(piece.key, present)
        self._changed.notify_all()
        return piece

    def has_left(self, key: PassKey) -> bool:
        """Whether no further piece of a pass comes. Under `changed`."""
        if self.newest is None:
            # The pass of an earlier reader, which this one may continue.
            return False
        return (self.head is None or self.head.key != key) and (key != self.newest or key.process in self.lost)

    def give_up(self) -> None:
        """The loader is waited for no longer; what it gives later belongs to a later epoch. Under `changed`."""
        self.is_awaited, self.answers, self._begins_later = False, False, True

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._cancellation.start_cancel()

    def _run(self) -> None:
        pause = threading.Event()
        try:
            while not self._is_closed:
                self._read_until_lost()
                pause.wait(POLL_SECS)
        except Exception as error:
            # Any error belongs to the thread that waits for a batch.
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _read_until_lost(self) -> None:
        with LoaderWatch(self._loader) as watch:
            if not watch.has_begun(ANSWER_SECS):
                return
            try:
                self._read(watch)
            except LoaderLostError as error:
                if not self._is_closed:
                    self._lose(error)
            except LostPeerError as error:
                logger.debug("%s", error)
            except Exception:
                if not self._is_closed:
                    raise

    def _read(self, watch: LoaderWatch) -> None:
        # Until there is an iterator, whose wait is ended then.
        watch.on_end(self._abandon)
        process = self._process()
        logger.info(
            "%s gives batches to this worker", watch.who, extra={"event": "loader", "loader": watch.loader.index}
        )
        with self._changed:
            if self._is_closed:
                # `close` has cancelled the one before: an element that is read now would be lost to all workers.
                return
            # `_abandon` is called after the end.
            self.answers = not watch.has_ended(0.0)
            self._cancellation = CancellationManager()
            # The order of a pass is not that of one before, which training may have had in part.
            num_passes = sum(number + 1 for number in self.lost.values())
        for number, *tensors in self._stream(num_passes).named(process).elements(watch, self._cancellation):
            if watch.has_ended(0.0):
                raise LoaderLostError(f"{watch.who} is lost")
            key = PassKey(watch.loader.index, process, int(number))
            piece = Piece(key, tuple(np.asarray(tensor) for tensor in tensors))
            with self._changed:
                self._counts.begin(key, self._size)
                self.head, self.newest, self.is_awaited = piece, key, True
                # One that was frozen continues.
                self.lost.pop(process, None)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.head is None or self._is_closed)
                if self._is_closed:
                    return

    def _abandon(self) -> None:
        """The loader is lost while this thread may be blocked in a call to it."""
        with self._changed:
            self.give_up()
            self._changed.notify_all()

    def _lose(self, error: LoaderLostError) -> None:
        """Ends the pass in progress; its examples that no worker has been given are lost."""
        logger.warning(
            "%s: what is left of its part of this epoch is lost, unless other workers have it", error,
            extra={"event": "loader_lost", "loader": self._loader.index},
        )  # fmt: skip
        with self._changed:
            self.give_up()
            self._is_new = True
            if self.newest is not None:
                self.lost[self.newest.process] = self.newest.number
            self._changed.notify_all()
