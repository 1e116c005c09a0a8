"""Evaluates named tensors in this process, without any ps: the fleet may train meanwhile, or have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf.server import session_config
from worker_service.frontends.interface import FrontEnd
from worker_service.local_step import LocalStep
from worker_service.session import WorkerSession


class Evaluator:
    """Runs a program's evaluation on given weights.

    A graph program's loss needs a graph: it is built at the first use.
    """

    def __init__(self, front_end: FrontEnd, layout: Layout, job: Job) -> None:
        self._job = job
        self._front_end = front_end
        self._layout = layout
        self._opened: tuple[LocalStep, v1.Session] | None = None

    @property
    def has_data(self) -> bool:
        """Whether the program has evaluation data."""
        return self._front_end.evaluation is not None

    def evaluate(self, values: Mapping[str, np.ndarray], global_step: int) -> dict[str, float]:
        """The program's metrics; empty without evaluation data.

        Args:
            values: Every named tensor of the model.
            global_step: Of the values.

        Raises:
            ProgramError: The program failed.
        """

        @cache
        def prepared() -> tuple[LocalStep, v1.Session, dict[tf.Tensor, np.ndarray]]:
            step, session = self._opened = self._opened or self._open()
            return step, session, step.feeds(values)

        number = self._job.batch_number(global_step) * self._job.train.accumulate

        def run_losses(batch: Sequence[np.ndarray]) -> list[float]:
            step, session, feeds = prepared()
            losses = [training.loss for training in step.training.each]
            return [float(loss) for loss in session.run(losses, feeds | step.batch(batch, number))]

        return self._front_end.evaluate(values, run_losses)

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `FrontEnd`."""
        return self._front_end.training_metrics(values)

    def _open(self) -> tuple[LocalStep, v1.Session]:
        step = LocalStep(self._front_end, self._layout, with_gradients=False)
        session = v1.Session(graph=step.graph, config=session_config(self._job.device))
        session.run(step.initializer)
        return step, session


def local_values(session: WorkerSession, layout: Layout) -> dict[str, np.ndarray]:
    """Every named tensor of this worker, all of one step."""
    return {
        **layout.parameters.unpack(session.parameters()),
        **layout.state.unpack(session.state()),
        **layout.frozen.unpack(session.frozen()),
    }
