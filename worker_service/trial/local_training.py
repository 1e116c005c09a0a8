"""Trains a job in this process alone: the step of `psfleet train` with one worker, and its update, in one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf import byte_vectors
from psfleet.tf.server import session_config
from psfleet.tf.traced_update import TracedUpdate
from worker_service.accumulation import microbatches
from worker_service.frontends.interface import FrontEnd
from worker_service.local_optimizer import VectorOptimizer
from worker_service.loss_step import KeptGradient, local_variable, loss_step
from worker_service.session_errors import translate_local_errors

NO_RECORDS = 1
"""Index of a worker that keeps no gradients for records; the chief has 0."""


class LocalTraining:
    """Parameters, state and optimizer of a job, and the session that changes them; a context manager.

    Args of the constructor:
        values: Every named tensor at the start.
        update: Of the program's own optimizer; None: the optimizer is psfleet's.
    """

    def __init__(
        self, front: FrontEnd, job: Job, layout: Layout, values: Mapping[str, np.ndarray], update: TracedUpdate | None
    ) -> None:
        self._layout = layout
        self._num_microbatches = job.train.accumulate
        flats = (layout.parameters, layout.state, layout.frozen)
        with tf.Graph().as_default() as graph:
            self._number = v1.placeholder(tf.int64, [])
            self._microbatch = v1.placeholder(tf.int64, []) if self._num_microbatches > 1 else self._number
            self._variables = [
                local_variable(name, [flat.size], tf.float32 if flat is layout.parameters else tf.uint8)
                for name, flat in zip(("parameters", "state", "frozen"), flats, strict=True)
            ]
            self._add_step(front, job, update)
            feeds = [v1.placeholder(variable.dtype, variable.shape) for variable in self._variables]
            load = [
                variable.assign(feed, read_value=False) for variable, feed in zip(self._variables, feeds, strict=True)
            ]
            variables = v1.global_variables() + v1.local_variables()
            initializer = tf.group(*[each.initializer for each in variables], v1.tables_initializer())
        graph.finalize()
        self._session = v1.Session(graph=graph, config=session_config(job.device))
        with translate_local_errors():
            self._session.run(initializer)
            packed = [flat.pack(values) for flat in flats]
            self._session.run(load, dict(zip(feeds, packed, strict=True)))

    def _add_step(self, front: FrontEnd, job: Job, update: TracedUpdate | None) -> None:
        layout = self._layout
        parameters, state, frozen = self._variables
        training = front.build(
            layout,
            [parameters.read_value()],
            byte_vectors.unpack(layout.state, state.read_value()),
            byte_vectors.unpack(layout.frozen, frozen.read_value()),
            self._microbatch,
        )
        self._feeds = training.feeds
        step = loss_step(training, job, layout, 0, state, self._microbatch, KeptGradient(job, layout, NO_RECORDS))
        self._accumulate = step.accumulate
        optimizer = VectorOptimizer(job, layout.parameters, parameters, self._number, update)
        kept = [state.assign(step.new_state, read_value=False)] if layout.state.size else []
        with tf.control_dependencies([optimizer.apply(step.gradients), *kept, *step.updates]):
            self._step = tf.identity(step.loss)

    def step(self, batch: Sequence[np.ndarray], number: int) -> float:
        """Updates the parameters with a batch; returns the loss, with accumulation the mean over the microbatches.

        Args:
            batch: In the order of the program's examples; with accumulation all microbatches, one after the other.
            number: Of the batch: the global step before the update.

        Raises:
            ProgramError: The program failed, or a tensor is not finite.
        """
        count = self._num_microbatches
        losses = []
        with translate_local_errors(f"step {number + 1}: "):
            for at, part in enumerate(microbatches(batch, count)):
                feeds = dict(zip(self._feeds, part, strict=True))
                feeds |= {self._number: np.int64(number), self._microbatch: np.int64(number * count + at)}
                fetched = self._step if at == count - 1 else self._accumulate
                losses.append(float(self._session.run(fetched, feeds)))
        return sum(losses) / count

    def values(self) -> dict[str, np.ndarray]:
        """Every named tensor."""
        with translate_local_errors():
            parameters, state, frozen = self._session.run(self._variables)
        layout = self._layout
        return {
            **layout.parameters.unpack(parameters),
            **layout.state.unpack(state),
            **layout.frozen.unpack(frozen),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.close()
