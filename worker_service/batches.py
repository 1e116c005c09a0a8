"""Which batch a worker trains next, and the batches by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from worker_service.session import SessionStart

Batch = tuple[np.ndarray, ...]

MAX_SKIPPED_BATCHES = 64
"""A batch at most so far ahead is reached by reading on; for any other the data are read from its epoch on."""


class BatchNumbers:
    """The numbers of a worker's batches.

    In sync mode the batch of a step is that of its number, whoever trained the steps before. In async mode a worker
    counts: a generation or a process starts at global step / workers, and each pushed gradient is one batch.

    Args of the constructor:
        num_workers: Workers and spares.
    """

    def __init__(self, is_sync: bool, num_workers: int) -> None:
        self._is_sync = is_sync
        self._num_workers = num_workers
        self._generation = -1
        self._count = 0
        self._under_way: int | None = None

    def start(self, generation: int, start: SessionStart) -> None:
        """A session with a generation is open.

        Async: if the session before it had the same generation and broke in a step, that step's batch is repeated
        unless every ps has its gradient.
        """
        if generation != self._generation:
            self._generation, self._count = generation, start.global_step // self._num_workers
        elif self._under_way is not None and start.local_steps.min() >= self._under_way:
            self._count += 1
        self._under_way = None

    def next(self, local_step: int) -> int:
        """The number of the batch of a step."""
        self._under_way = local_step
        return local_step if self._is_sync else self._count

    def pushed(self) -> None:
        """The gradient of the last number is pushed."""
        self._under_way = None
        self._count += 1


class Batches:
    """The batches of one worker.

    Args of the constructor:
        make: Returns the batches from a number on.
    """

    def __init__(self, make: Callable[[int], Iterator[Batch]], numbers: BatchNumbers) -> None:
        self.numbers = numbers
        self._make = make
        self._batches: Iterator[Batch] | None = None
        self._number = -1
        self._current: Batch | None = None

    def at(self, number: int) -> Batch:
        """The batch of a number; free for the last one, cheap for one of the next `MAX_SKIPPED_BATCHES`."""
        if self._current is None or number != self._number:
            self._read_to(number)
        assert self._current is not None
        return self._current

    def _read_to(self, number: int) -> None:
        if self._batches is None or not 0 < number - self._number <= MAX_SKIPPED_BATCHES:
            self._batches, self._number, self._current = self._make(number), number - 1, None
        while self._number < number:
            self._current = next(self._batches)
            self._number += 1
