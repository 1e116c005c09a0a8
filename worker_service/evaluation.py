"""Evaluates named tensors in this process, without any ps: the fleet may train meanwhile, or have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.sections import Device
from psfleet.layout import Layout
from psfleet.tf.server import session_config
from worker_service.frontends.interface import FrontEnd


class Evaluator:
    """Runs a program's evaluation on given weights.

    A graph program's loss needs a graph: it is built at the first use, in a session without a cluster.
    """

    def __init__(self, front_end: FrontEnd, layout: Layout, device: Device) -> None:
        self._device = device
        self._front_end = front_end
        self._layout = layout
        self._session: v1.Session | None = None

    def evaluate(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The program's metrics; empty without evaluation data.

        Args:
            values: Every named tensor of the model.

        Raises:
            ProgramError: The program failed.
        """

        def run_loss(batch: Sequence[np.ndarray]) -> float:
            session = self._session or self._build()
            feeds = dict(zip(self._feeds, batch, strict=True)) | self._values(values)
            return float(session.run(self._loss, feeds))

        return self._front_end.evaluate(values, run_loss)

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `FrontEnd`."""
        return self._front_end.training_metrics(values)

    def _values(self, values: Mapping[str, np.ndarray]) -> dict[tf.Tensor, np.ndarray]:
        layout = self._layout
        tensors = [values[spec.name] for spec in (*layout.state.specs, *layout.frozen.specs)]
        return {self._parameters: layout.parameters.pack(values)} | dict(zip(self._others, tensors, strict=True))

    def _build(self) -> v1.Session:
        layout = self._layout
        with tf.Graph().as_default() as graph:
            self._parameters = v1.placeholder(tf.float32, [layout.parameters.size])
            state = [v1.placeholder(spec.dtype, spec.shape) for spec in layout.state.specs]
            frozen = [v1.placeholder(spec.dtype, spec.shape) for spec in layout.frozen.specs]
            self._others = [*state, *frozen]
            training = self._front_end.build(layout, self._parameters, state, frozen)
            self._feeds, self._loss = training.feeds, training.loss
            initializer = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer())
        self._session = v1.Session(graph=graph, config=session_config(self._device))
        self._session.run(initializer)
        return self._session
