"""The training loop of a worker over one session: batch by batch, until every shard has reached its target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from worker_service.heartbeat import Heartbeat
from worker_service.session import Start, WorkerSession

Batch = tuple[np.ndarray, ...]


class Observer(Protocol):
    """Who looks at the steps of a worker: the chief's recorder."""

    def start(self, global_step: int) -> None:
        """The loop begins at a global_step."""

    def step(self, session: WorkerSession, batch: Batch, global_step: int, loss: float, secs: float) -> None:
        """A step is done: the global_step now, the loss of the batch, the seconds since the step before."""


class Batches:
    """Batches of this worker's shard; the one in hand is kept until its gradient is known to be pushed."""

    def __init__(self, make: Callable[[int], Iterator[Batch]]) -> None:
        self._make = make
        self._batches: Iterator[Batch] | None = None
        self._in_hand: Batch | None = None
        self.generation = -1

    def seek(self, generation: int, index: int) -> None:
        """Begins a generation at the batch of an index; the data set is read from there on."""
        self.generation = generation
        self._batches = self._make(index)
        self._in_hand = None

    def current(self) -> Batch:
        """The batch in hand."""
        assert self._batches is not None, "seek() comes first"
        if self._in_hand is None:
            self._in_hand = next(self._batches)
        return self._in_hand

    def done(self) -> None:
        """The batch in hand is pushed."""
        self._in_hand = None


def train(
    session: WorkerSession, start: Start, is_sync: bool, batches: Batches, heartbeat: Heartbeat, observer: Observer
) -> None:
    """Trains until every shard has reached its target.

    A step's local_step is the lowest global_step among the shards: a gradient is never newer than the parameters that it was
    computed on, on any shard.

    Raises:
        LostPeerError: See `WorkerSession`.
        ProgramError: See `WorkerSession`.
    """
    progress = start.progress
    local_step = heartbeat.step = start.global_step
    observer.start(local_step)
    heartbeat.meter.attached()
    before = time.perf_counter()
    if is_sync and local_step <= start.local_steps.min() and not _is_done(progress):
        progress = session.await_step(local_step)
        heartbeat.meter.awaited()
        local_step = _global_step(progress)
    while not _is_done(progress):
        heartbeat.step = local_step
        batch = batches.current()
        loss, progress = session.train(batch, local_step)
        batches.done()
        heartbeat.pushed += 1
        local_step = _global_step(progress)
        now = time.perf_counter()
        heartbeat.meter.step(now - before)
        observer.step(session, batch, local_step, loss, now - before)
        before = now
    heartbeat.step = local_step


def _global_step(progress: np.ndarray) -> int:
    return min(global_step for global_step, _ in progress.tolist())


def _is_done(progress: np.ndarray) -> bool:
    return all(global_step >= target for global_step, target in progress.tolist())


class NullObserver:
    """An observer that does not look: that of every worker but the chief."""

    def start(self, global_step: int) -> None:
        """See `Observer`."""

    def step(
        self, session: WorkerSession, batch: Sequence[np.ndarray], global_step: int, loss: float, secs: float
    ) -> None:
        """See `Observer`."""
