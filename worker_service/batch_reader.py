"""Reads batches on a thread of its own, one ahead: waiting for a data set then has a deadline, and can be ended.

A data set that blocks does so inside TensorFlow, where no exception reaches it. Its thread is abandoned; the process
ends with `os._exit`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

Batch = tuple[np.ndarray, ...]


class ReadingClosedError(Exception):
    """Ends the thread of a reader that was closed while it made a data set."""


@dataclass
class Reading:
    """What the thread of a reader is doing. Each attribute has one writer.

    Attributes:
        is_closed: Set by the reader: no other batch is needed.
        opens_shard: Set by the batches: the next one is the first of another data set, or of an epoch that is shuffled.
        on_take: Set by the batches: called when the newest one is taken, before the next one is asked for.
    """

    is_closed: bool = False
    opens_shard: bool = False
    on_take: Callable[[], None] = lambda: None

    def check(self) -> None:
        """Raises ReadingClosedError if the reader was closed."""
        if self.is_closed:
            raise ReadingClosedError


class BatchReader:
    """One reader of endless batches.

    Args of the constructor:
        make: Returns the batches; called on the reader's thread.

    Attributes:
        reading: What the thread is doing.
    """

    def __init__(self, make: Callable[[Reading], Iterator[Batch]]) -> None:
        self.reading = Reading()
        self._make = make
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._read: SimpleQueue[Batch | Exception | None] = SimpleQueue()
        self._wanted.put(True)
        threading.Thread(target=self._read_until_closed, name="read-batches", daemon=True).start()

    def get(self, timeout_secs: float) -> Batch | None:
        """The next batch; None after `wake`.

        Raises:
            queue.Empty: There was none in time.
            Exception: What reading raised.
        """
        item = self._read.get(timeout=timeout_secs)
        if isinstance(item, Exception):
            raise item
        if item is not None:
            self.reading.on_take()
            self._wanted.put(True)
        return item

    def wake(self) -> None:
        """Ends a `get` that waits, or the next one; from any thread."""
        self._read.put(None)

    def close(self) -> None:
        """Ends the thread after the batch that it reads, which may be one that it skips."""
        self.reading.is_closed = True
        self._wanted.put(False)

    def _read_until_closed(self) -> None:
        try:
            batches = self._make(self.reading)
            while self._wanted.get():
                self._read.put(next(batches))
        except Exception as error:
            # Any error belongs to the thread that waits for a batch.
            self._read.put(error)
