"""Sync mode: a worker waits until each shard's global step is above that of the gradient that it has pushed."""

from __future__ import annotations

import numpy as np

from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.interface import StepSession, is_done, one_gradient


class SyncPart:
    """See `UpdatePart`."""

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """Waits for the end of a step whose gradient every ps has already, from an earlier session."""
        del batches
        if start.global_step <= start.numbers.min() and not is_done(start.shards):
            return session.await_step(start.global_step)
        return start.shards

    def step(
        self, session: StepSession, batches: BatchSource, local_step: int
    ) -> tuple[Batch, float | None, np.ndarray]:
        """See `UpdatePart`."""
        return one_gradient(session, batches, local_step)
