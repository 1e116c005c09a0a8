"""Interface of a worker's part in the updates of a mode; what it waits for on a ps is in `psfleet.tf.waits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from worker_service.batch_reader import Batch
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart


class StepSession(Protocol):
    """The part of a session that makes steps; see `worker_service.session.WorkerSession`."""

    def train(self, batch: Sequence[np.ndarray], local_step: int, number: int) -> tuple[float | None, np.ndarray]:
        """Pushes the gradient of a batch, and pulls; without a loss it has pushed none."""

    def update_locally(self, batch: Sequence[np.ndarray], number: int) -> float:
        """Makes an update of this worker's own parameters."""

    def exchange(self, local_step: int) -> np.ndarray:
        """Pushes what these updates have made, and pulls."""

    def await_step(self, local_step: int) -> np.ndarray:
        """Waits for the end of a step whose gradient is pushed already, and pulls."""


class UpdatePart(Protocol):
    """What a worker does in a step, as far as it depends on the mode; called by the training loop."""

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """What comes before the first step of a session; the shards after it, as in `start` if there is nothing."""

    def step(
        self, session: StepSession, batches: BatchSource, local_step: int
    ) -> tuple[Batch, float | None, np.ndarray]:
        """Reads batches and makes one step.

        Returns:
            The newest batch; the loss, None if the step was abandoned; global step and final step of each shard, int64
            `[num_ps, 2]`.
        """


def one_gradient(session: StepSession, batches: BatchSource, local_step: int) -> tuple[Batch, float | None, np.ndarray]:
    """A step of the modes in which a worker pushes the gradient of one batch; see `UpdatePart.step`."""
    number = batches.numbers.next(local_step)
    batch = batches.at(number)
    loss, shards = session.train(batch, local_step, number)
    batches.numbers.pushed()
    return batch, loss, shards


def is_done(shards: np.ndarray) -> bool:
    """Whether every shard has reached its final step; int64 `[num_ps, 2]`."""
    return all(global_step >= final_step for global_step, final_step in shards.tolist())
