"""Averaging mode: a worker takes optimizer steps of its own, and then waits for the average as for a sync step."""

from __future__ import annotations

import logging

import numpy as np

from psfleet.job.job import Job
from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.interface import StepSession, is_done
from worker_service.updates.sync import SyncPart

logger = logging.getLogger("psfleet.worker")


class AveragingPart(SyncPart):
    """See `UpdatePart`, in one session; a gradient is here what a worker pushes after the last step of a round."""

    def __init__(self, job: Job) -> None:
        self._update = job.update
        self._optimizer = job.rule.name
        self._has_new_slots = not job.update.average_slots and job.rule.name != "sgd"

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """As in sync mode; warns if the optimizer starts without the slots of the steps before."""
        if self._has_new_slots and start.global_step > 0 and not is_done(start.shards):
            logger.warning(
                "optimizer %s starts without state at step %d: update.average_slots is false, and the slots of a "
                "worker end with its session",
                self._optimizer,
                start.global_step,
                extra={"event": "slots_lost", "step": start.global_step},
            )
        # A session that is resumed has its slots.
        self._has_new_slots = False
        return super().begin(session, batches, start)

    def step(self, session: StepSession, batches: BatchSource, local_step: int) -> tuple[Batch, float, np.ndarray]:
        """One round: the steps up to the next multiple of `local_steps`, with the batches of their numbers.

        The loss is the mean over the steps.
        """
        losses = []
        for number in range(local_step, self._update.next_step(local_step)):
            batch = batches.at(number)
            losses.append(session.update_locally(batch, number))
        return batch, float(np.mean(losses)), session.exchange(local_step)
