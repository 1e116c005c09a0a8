"""Async mode: a worker waits until each ps has applied or dropped the gradient that it has pushed there."""

from __future__ import annotations

import numpy as np

from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.interface import StepSession, one_gradient


class AsyncPart:
    """See `UpdatePart`."""

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """Nothing."""
        del session, batches
        return start.shards

    def step(
        self, session: StepSession, batches: BatchSource, local_step: int
    ) -> tuple[Batch, float | None, np.ndarray]:
        """See `UpdatePart`."""
        return one_gradient(session, batches, local_step)
