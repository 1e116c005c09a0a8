"""The training loop of a worker over one session: batch by batch, until every shard has reached the final step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from worker_service.progress import TrainingProgress
from worker_service.session import SessionStart, WorkerSession

Batch = tuple[np.ndarray, ...]


class Observer(Protocol):
    """Is called for each step of a worker: the chief's recorder."""

    def start(self, global_step: int) -> None:
        """The loop starts at a global step."""

    def step(self, session: WorkerSession, batch: Batch, global_step: int, loss: float, secs: float) -> None:
        """A step is done.

        Args:
            session: The worker's open session.
            batch: The step's batch.
            global_step: After the step.
            loss: Of the batch, before the update.
            secs: Seconds since the end of the step before.
        """


class Batches:
    """Batches of this worker's shard; the current one is kept until its gradient is known to be pushed.

    Args of the constructor:
        make: Returns the batches from an index on.
    """

    def __init__(self, make: Callable[[int], Iterator[Batch]]) -> None:
        self._make = make
        self._batches: Iterator[Batch] | None = None
        self._current: Batch | None = None
        self._generation = -1

    def seek(self, generation: int, index: int) -> None:
        """Starts a generation at the batch of an index; does nothing if this generation has been started before."""
        if self._generation == generation:
            return
        self._generation = generation
        self._batches = self._make(index)
        self._current = None

    def current(self) -> Batch:
        """The current batch; reads it if the one before is done."""
        assert self._batches is not None, "seek() comes first"
        if self._current is None:
            self._current = next(self._batches)
        return self._current

    def done(self) -> None:
        """The gradient of the current batch is pushed."""
        self._current = None


def train(
    session: WorkerSession,
    start: SessionStart,
    is_sync: bool,
    batches: Batches,
    progress: TrainingProgress,
    observer: Observer,
) -> None:
    """Trains until every shard has reached its final step.

    A step's local step is the lowest global step among the shards, so that a gradient is never newer than the
    parameters that it was computed on, on any shard.

    Raises:
        LostPeerError: See `WorkerSession`.
        ProgramError: See `WorkerSession`.
    """
    shards = start.shards
    local_step = start.global_step
    observer.start(local_step)
    progress.session_opened(local_step)
    before = time.perf_counter()
    if is_sync and local_step <= start.local_steps.min() and not _is_done(shards):
        shards = session.await_step(local_step)
        local_step = _global_step(shards)
        progress.step_awaited(local_step)
    while not _is_done(shards):
        batch = batches.current()
        loss, shards = session.train(batch, local_step)
        batches.done()
        local_step = _global_step(shards)
        now = time.perf_counter()
        progress.step_done(local_step, now - before)
        observer.step(session, batch, local_step, loss, now - before)
        before = now


def _global_step(shards: np.ndarray) -> int:
    """The lowest global step of int64 `[num_ps, 2]`."""
    return min(global_step for global_step, _ in shards.tolist())


def _is_done(shards: np.ndarray) -> bool:
    return all(global_step >= final_step for global_step, final_step in shards.tolist())


class NullObserver:
    """The observer of every worker except the chief: does nothing."""

    def start(self, global_step: int) -> None:
        """See `Observer`."""

    def step(self, session: WorkerSession, batch: Batch, global_step: int, loss: float, secs: float) -> None:
        """See `Observer`."""
