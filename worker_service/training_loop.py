"""The training loop of a worker over one session: batch by batch, until every shard has reached the final step."""

from __future__ import annotations

import logging
import time
from typing import Protocol

import numpy as np

from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.progress import TrainingProgress
from worker_service.session import WorkerSession
from worker_service.session_errors import RefusedCallError
from worker_service.session_start import SessionStart
from worker_service.updates import UpdatePart
from worker_service.updates.interface import is_done

logger = logging.getLogger("psfleet.worker")


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
            secs: Seconds since the end of the step before that was not abandoned.
        """


def train_generation(
    session: WorkerSession,
    generation: int,
    part: UpdatePart,
    batches: BatchSource,
    progress: TrainingProgress,
    observer: Observer,
) -> np.ndarray:
    """Opens a session and trains until every shard has reached its final step.

    Resumes the session after each call that TensorFlow refused by mistake. What such a call left is cured as after a
    lost session: state and parameters are read again, and a gradient that every ps has is not repeated.

    Returns:
        Global step and final step of each shard, int64 `[num_ps, 2]`.

    Raises:
        LostPeerError: See `WorkerSession`.
        ProgramError: See `WorkerSession`.
    """
    start = session.start()
    while True:
        batches.numbers.start(generation, start)
        try:
            return train(session, start, part, batches, progress, observer)
        except RefusedCallError as error:
            logger.debug("resuming the session: %s", error)
            start = session.resume()


def train(
    session: WorkerSession,
    start: SessionStart,
    part: UpdatePart,
    batches: BatchSource,
    progress: TrainingProgress,
    observer: Observer,
) -> np.ndarray:
    """Trains until every shard has reached its final step; returns and raises what `train_generation` does.

    A step's local step is the lowest global step among the shards, so that a gradient is never newer than the
    parameters that it was computed on, on any shard.
    """
    local_step = start.global_step
    observer.start(local_step)
    progress.session_opened(local_step)
    before = time.perf_counter()
    shards = part.begin(session, batches, start)
    if shards is not start.shards:
        local_step = _global_step(shards)
        progress.step_awaited(local_step)
    while not is_done(shards):
        batch, loss, shards = part.step(session, batches, local_step)
        local_step = _global_step(shards)
        if loss is None:
            progress.step_abandoned(local_step)
            continue
        now = time.perf_counter()
        progress.step_done(local_step, now - before)
        observer.step(session, batch, local_step, loss, now - before)
        before = now
    return shards


def _global_step(shards: np.ndarray) -> int:
    """The lowest global step of int64 `[num_ps, 2]`."""
    return min(global_step for global_step, _ in shards.tolist())


class NullObserver:
    """The observer of every worker except the chief: does nothing."""

    def start(self, global_step: int) -> None:
        """See `Observer`."""

    def step(self, session: WorkerSession, batch: Batch, global_step: int, loss: float, secs: float) -> None:
        """See `Observer`."""
