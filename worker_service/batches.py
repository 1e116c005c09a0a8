"""Chooses the number of a worker's next batch, and reads batches by their numbers."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from psfleet.errors import DataStallError, LostPeerError
from psfleet.job.sections import Deadlines
from worker_service.batch_reader import Batch, BatchReader
from worker_service.progress import TrainingProgress
from worker_service.session_start import SessionStart
from worker_service.worker_data import Data

logger = logging.getLogger("psfleet.worker")

MAX_SKIPPED_BATCHES = 64
"""A batch at most so far ahead is reached by reading on, even if fewer batches had to be read from its epoch on."""
LOOK_SECS = 1.0
"""How often a waiting worker looks whether its reader has begun with another shard."""


class BatchNumbers:
    """The numbers of a worker's batches.

    In sync mode the batch of a step is that of its number, whoever trained the steps before. In async mode a worker
    counts: it starts at global step / workers in each generation, and each gradient has the number of its batch.

    Args of the constructor:
        are_steps: Whether the number of a batch is the local step: with a quorum.
        num_workers: Workers and spares.
    """

    def __init__(self, are_steps: bool, num_workers: int) -> None:
        self._are_steps = are_steps
        self._num_workers = num_workers
        self._generation = -1
        self._count = 0

    def start(self, generation: int, start: SessionStart) -> None:
        """A session with a generation is open.

        Async: continues after the newest gradient of this worker's index, whichever process pushed it. If not every ps
        has that gradient, its batch is repeated: those that have it drop the second one. No ps lacks an earlier one,
        because a worker pushes a gradient when every ps has the one before.
        """
        newest = int(start.numbers.max())
        if newest >= 0:
            self._count = newest + bool((start.numbers == newest).all())
        elif generation != self._generation:
            self._count = start.global_step // self._num_workers
        self._generation = generation

    def next(self, local_step: int) -> int:
        """The number of the batch of a step, on parameters of a global step."""
        return local_step if self._are_steps else self._count

    def served(self, number: int) -> None:
        """The batch of a number is used: that of the next gradient follows it."""
        self._count = number + 1

    def pushed(self) -> None:
        """The gradient of the last number is pushed."""
        self._count += 1


class BatchSource(Protocol):
    """Batches by their numbers, as the training loop needs them."""

    numbers: BatchNumbers

    def at(self, number: int) -> Batch:
        """The batch of a number."""


class Batches:
    """The batches of one worker: a `BatchSource`.

    Args of the constructor:
        data: Of this worker.
        deadlines: Of the job: how long a batch may take.
        index: Of this worker.
        progress: Receives whether this worker waits for a first batch.

    Attributes:
        wait_ended: When the newest wait for a batch ended, by `time.monotonic`; -inf: there was none. Such a wait has a
            deadline of its own.
    """

    def __init__(
        self,
        data: Data,
        numbers: BatchNumbers,
        deadlines: Deadlines,
        index: int,
        progress: TrainingProgress,
    ) -> None:
        self.numbers = numbers
        self._data = data
        self._deadlines = deadlines
        self._index = index
        self._progress = progress
        self.wait_ended = -math.inf
        self._reader: BatchReader | None = None
        self._interrupted = threading.Event()
        self._number = -1
        self._current: Batch | None = None
        self._reading = threading.Lock()

    def at(self, number: int) -> Batch:
        """The batch of a number; the last one is kept. From any thread: each waits for that which reads.

        Raises:
            DataStallError: The data set did not give it in time.
            LostPeerError: The wait was interrupted.
            ProgramError: Reading failed.
        """
        with self._reading:
            if self._current is None or number != self._number:
                self._read_to(number)
            assert self._current is not None
            return self._current

    def interruptible(self) -> Callable[[], None]:
        """Starts a session; returns a function that ends its waits for a batch, from any thread."""
        interrupted = self._interrupted = threading.Event()

        def interrupt() -> None:
            interrupted.set()
            # Once: the thread that reads may drop its reader meanwhile.
            if (reader := self._reader) is not None:
                reader.wake()

        return interrupt

    def announce_first(self) -> None:
        """Reports that this worker is about to wait for a first batch, unless it has read one."""
        self._progress.await_first_batch(self._current is None)

    def report(self) -> None:
        """Reports at once what training was given, if that is counted."""
        self._data.report()

    def close(self) -> None:
        """Ends reading; the data set is released."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read_to(self, number: int) -> None:
        if not self._data.is_replayable:
            self._number = number - 1
        if self._reader is None or not self._is_reached_by_reading_on(number):
            if self._reader is not None:
                self._reader.close()
            self._reader = BatchReader(partial(self._data.batches, number))
            self._number, self._current = number - 1, None
        while self._number < number:
            self._current = self._next(self._reader)
            self._number += 1

    def _is_reached_by_reading_on(self, number: int) -> bool:
        """Whether that is not more to read than from the start of the epoch on; data without an end have one epoch."""
        distance = number - self._number
        if distance <= MAX_SKIPPED_BATCHES:
            return distance > 0
        skipped = self._data.num_skipped(number)
        return skipped is not None and skipped >= distance

    def _next(self, reader: BatchReader) -> Batch:
        """The reader's next batch; the first of a reader and of each shard may take longer."""
        wait = _Wait(f"the data set of worker {self._index} to give batch {self._number + 1}", self._deadlines)
        try:
            while not self._interrupted.is_set():
                if self._current is None or reader.reading.opens_shard:
                    wait.is_first = True
                    self._progress.await_first_batch()
                try:
                    batch = reader.get(wait.next_secs())
                except queue.Empty:
                    wait.check(reader.reading.opens_shard)
                except Exception:
                    # Its thread has ended: the next wait needs another reader.
                    self._reader = None
                    raise
                else:
                    if batch is not None:
                        return batch
        finally:
            self._progress.await_first_batch(False)
            self.wait_ended = time.monotonic()
        raise LostPeerError(f"the wait for {wait.what} was interrupted")


class _Wait:
    """The wait for one batch; says after `deadlines.slow_secs` that the data are slow.

    Attributes:
        is_first: Whether the batch may take `first_secs`. A reader can begin with another shard during the wait.
    """

    def __init__(self, what: str, deadlines: Deadlines) -> None:
        self.what = what
        self.is_first = False
        self._deadlines = deadlines
        self._began = time.monotonic()
        self._is_slow = False

    def next_secs(self) -> float:
        """Until the next look at the reader, or the next deadline."""
        limit = self._limit() if self._is_slow else self._slow_secs()
        return max(0.0, min(LOOK_SECS, limit - self._waited()))

    def check(self, opens_shard: bool) -> None:
        """Raises DataStallError if the wait was too long."""
        self.is_first = self.is_first or opens_shard
        if self._waited() >= self._limit():
            raise DataStallError(self.what, self._limit())
        if not self._is_slow and self._waited() >= self._slow_secs():
            self._is_slow, secs = True, self._slow_secs()
            logger.warning("waiting for %s since %g s", self.what, secs, extra={"event": "slow_data", "secs": secs})

    def _limit(self) -> float:
        return self._deadlines.first_secs if self.is_first else self._deadlines.stall_secs

    def _slow_secs(self) -> float:
        return min(self._deadlines.slow_secs, self._limit())

    def _waited(self) -> float:
        return time.monotonic() - self._began
