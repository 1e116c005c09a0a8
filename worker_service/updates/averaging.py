"""Averaging mode: a worker takes optimizer steps of its own, and then waits for the average as for a sync step."""

from __future__ import annotations

import numpy as np

from psfleet.job.update import Update
from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.updates.interface import StepSession
from worker_service.updates.sync import SyncPart


class AveragingPart(SyncPart):
    """See `UpdatePart`; a gradient is here what a worker pushes after the last step of a round."""

    def __init__(self, update: Update) -> None:
        self._update = update

    def step(self, session: StepSession, batches: BatchSource, local_step: int) -> tuple[Batch, float, np.ndarray]:
        """One round: the steps up to the next multiple of `local_steps`, with the batches of their numbers.

        The loss is the mean over the steps.
        """
        losses = []
        for number in range(local_step, self._update.next_step(local_step)):
            batch = batches.at(number)
            losses.append(session.update_locally(batch, number))
        return batch, float(np.mean(losses)), session.exchange(local_step)
