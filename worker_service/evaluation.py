"""Evaluates named tensors in this process, without any ps: the fleet may train meanwhile, or have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.sections import Device
from psfleet.layout import Layout
from psfleet.tf.server import session_config
from worker_service.frontends.interface import FrontEnd


class LocalStep:
    """A program's step in a graph without a cluster, to which parameters, state and frozen tensors are fed.

    Attributes:
        graph: The graph.
        training: The step in it.
        initializer: Initializes its variables and tables.
    """

    def __init__(self, front_end: FrontEnd, layout: Layout) -> None:
        self._layout = layout
        with tf.Graph().as_default() as self.graph:
            self._parameters = v1.placeholder(tf.float32, [layout.parameters.size])
            state = [v1.placeholder(spec.dtype, spec.shape) for spec in layout.state.specs]
            frozen = [v1.placeholder(spec.dtype, spec.shape) for spec in layout.frozen.specs]
            self._others = [*state, *frozen]
            self.training = front_end.build(layout, self._parameters, state, frozen)
            variables = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            self.initializer = tf.group(*variables, v1.tables_initializer())

    def feeds(self, values: Mapping[str, np.ndarray]) -> dict[tf.Tensor, np.ndarray]:
        """Every named tensor of the model, by its placeholder."""
        layout = self._layout
        others = [values[spec.name] for spec in (*layout.state.specs, *layout.frozen.specs)]
        return {self._parameters: layout.parameters.pack(values)} | dict(zip(self._others, others, strict=True))

    def batch(self, batch: Sequence[np.ndarray]) -> dict[tf.Tensor, np.ndarray]:
        """The arrays of a batch, by their placeholders."""
        return dict(zip(self.training.feeds, batch, strict=True))


class Evaluator:
    """Runs a program's evaluation on given weights.

    A graph program's loss needs a graph: it is built at the first use.
    """

    def __init__(self, front_end: FrontEnd, layout: Layout, device: Device) -> None:
        self._device = device
        self._front_end = front_end
        self._layout = layout
        self._opened: tuple[LocalStep, v1.Session] | None = None

    def evaluate(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The program's metrics; empty without evaluation data.

        Args:
            values: Every named tensor of the model.

        Raises:
            ProgramError: The program failed.
        """

        @cache
        def prepared() -> tuple[LocalStep, v1.Session, dict[tf.Tensor, np.ndarray]]:
            step, session = self._opened = self._opened or self._open()
            return step, session, step.feeds(values)

        def run_loss(batch: Sequence[np.ndarray]) -> float:
            step, session, feeds = prepared()
            return float(session.run(step.training.loss, feeds | step.batch(batch)))

        return self._front_end.evaluate(values, run_loss)

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `FrontEnd`."""
        return self._front_end.training_metrics(values)

    def _open(self) -> tuple[LocalStep, v1.Session]:
        step = LocalStep(self._front_end, self._layout)
        session = v1.Session(graph=step.graph, config=session_config(self._device))
        session.run(step.initializer)
        return step, session
