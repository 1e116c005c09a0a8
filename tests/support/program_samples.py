"""A small job, and one local session that runs a front end's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.job.job import Job, parse_job
from psfleet.layout import Layout
from worker_service.frontends import FrontEnd, TrainingGraph
from worker_service.towers import divided

TOWER_STRIDE = 2
"""The random numbers of tower i of worker 0 are those of worker 2 i."""


def sample_job(**train: Any) -> Job:
    """A job for a program `program:build` with batches of 4, unshuffled, and seed 7."""
    return parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 4, "shuffle": 0, "seed": 7, **train},
        }
    )


@dataclass
class Stepper:
    """A front end's step in a v1 session of its own, on 2 ps with small buckets."""

    front: FrontEnd
    layout: Layout
    graph: TrainingGraph
    session: Any
    inputs: Sequence[Any]
    number: Any

    @classmethod
    def of(cls, front: FrontEnd, server: str = "", towers: int = 1) -> Stepper:
        """Builds the front end's step and opens a session, on a server at `grpc://host:port` or in this process.

        Args:
            towers: Number of virtual CPU devices over which batches are divided.
        """
        step = divided(front, 0, TOWER_STRIDE, [f"/device:CPU:{at}" for at in range(towers)] if towers > 1 else ())
        layout = Layout.plan(front.parameters, front.state, front.frozen, num_ps=2, bucket_bytes=4096)
        with tf.Graph().as_default() as graph:
            vector = tf.compat.v1.placeholder(tf.float32, [layout.parameters.size])
            state = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in layout.state.specs]
            frozen = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in layout.frozen.specs]
            number = tf.compat.v1.placeholder_with_default(tf.constant(0, tf.int64), [])
            training = step.build(layout, [vector], state, frozen, number)
            tables = tf.compat.v1.tables_initializer()
        config = tf.compat.v1.ConfigProto(device_count={"CPU": towers})
        session = tf.compat.v1.Session(server, graph=graph, config=config)
        session.run(tables)
        return cls(front, layout, training, session, [vector, *state, *frozen], number)

    def run(
        self,
        fetches: Any,
        batch: Sequence[np.ndarray],
        values: Mapping[str, np.ndarray] | None = None,
        number: int = 0,
        **tracing: Any,
    ) -> Any:
        """Runs tensors of the step on the batch of a number, with the initial values unless others are given.

        Args:
            tracing: Options and metadata of `Session.run`.
        """
        values = values or self.front.initial_values()
        others = [values[spec.name] for spec in (*self.layout.state.specs, *self.layout.frozen.specs)]
        feeds = dict(zip(self.inputs, [self.layout.parameters.pack(values), *others], strict=True))
        feeds |= {self.number: number, **dict(zip(self.graph.feeds, batch, strict=True))}
        return self.session.run(fetches, feeds, **tracing)

    def gradients(self, batch: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The gradient of each named parameter."""
        specs = self.layout.parameters.specs
        gradients = self.run(self.graph.gradients, batch)
        return {spec.name: flat.reshape(spec.shape) for spec, flat in zip(specs, gradients, strict=True)}
