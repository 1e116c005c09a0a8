"""Ssp mode: as async, and a worker waits at ps 0 while it is too many steps ahead of the slowest one."""

from __future__ import annotations

import numpy as np

from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.asynchronous import AsyncPart
from worker_service.updates.interface import StepSession, is_done


class SspPart(AsyncPart):
    """See `UpdatePart`."""

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """Reads the first batch, for which nobody has to wait; only then this worker is counted, and pulls again.

        Nothing if every step is made: the data may be slow, or give no batch.
        """
        if is_done(start.shards):
            return start.shards
        batches.at(batches.numbers.next(start.global_step))
        return session.await_step(start.global_step)
