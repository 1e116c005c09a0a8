"""The training loop of a worker over one session: batch by batch, until every shard has reached its target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from worker_service.heartbeat import Pulse
from worker_service.session import Attachment, Start

Batch = tuple[np.ndarray, ...]


class Observer(Protocol):
    """Who looks at the steps of a worker: the chief's recorder."""

    def start(self, version: int) -> None:
        """The loop begins at a version."""

    def step(self, attachment: Attachment, batch: Batch, version: int, loss: float, secs: float) -> None:
        """A step is done: the version now, the loss of the batch, the seconds since the step before."""


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
    attachment: Attachment, start: Start, is_sync: bool, batches: Batches, pulse: Pulse, observer: Observer
) -> None:
    """Trains until every shard has reached its target.

    A step's label is the lowest version among the shards: a gradient is never newer than the parameters that it was
    computed on, on any shard.

    Raises:
        LostPeerError: See `Attachment`.
        ProgramError: See `Attachment`.
    """
    progress = start.progress
    label = pulse.step = start.version
    observer.start(label)
    pulse.meter.attached()
    before = time.perf_counter()
    if is_sync and label <= start.labels.min() and not _is_done(progress):
        progress = attachment.await_step(label)
        pulse.meter.awaited()
        label = _version(progress)
    while not _is_done(progress):
        pulse.step = label
        batch = batches.current()
        loss, progress = attachment.train(batch, label)
        batches.done()
        pulse.pushed += 1
        label = _version(progress)
        now = time.perf_counter()
        pulse.meter.step(now - before)
        observer.step(attachment, batch, label, loss, now - before)
        before = now
    pulse.step = label


def _version(progress: np.ndarray) -> int:
    return min(version for version, _ in progress.tolist())


def _is_done(progress: np.ndarray) -> bool:
    return all(version >= target for version, target in progress.tolist())


class Nobody:
    """An observer that does not look: that of every worker but the chief."""

    def start(self, version: int) -> None:
        """See `Observer`."""

    def step(self, attachment: Attachment, batch: Sequence[np.ndarray], version: int, loss: float, secs: float) -> None:
        """See `Observer`."""
