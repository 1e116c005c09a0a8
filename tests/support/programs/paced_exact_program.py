"""The programs of other modules here, whose steps a test can replay, at a pace that leaves time to break something."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import psfleet

MODULES = {"graph": "exact_graph_program", "keras": "exact_keras_program", "gan": "tiny_gan_program"}
"""By front end; a test copies those that it uses."""
LOOK_SECS = 0.02
"""Pause between two looks at a closed gate."""
FOREVER = threading.Event()
"""Never set: waiting for it paces the data."""


def build(gates: str, step_secs: float, front_end: str, batch_size: int) -> psfleet.GraphProgram | psfleet.KerasProgram:
    """The program of a front end.

    Args:
        gates: A folder. While it has a file `hold-<shard>`, that shard gives no batch; while it has a file `pace`,
            every shard takes `step_secs` for each batch.
        step_secs: Seconds for a batch.
        front_end: graph or keras; gan: a graph program with two losses.
        batch_size: Of the job.
    """
    module = importlib.import_module(MODULES[front_end])

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        x, y = module.data()

        def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for number, at in enumerate(range(shard_index, len(x), num_shards)):
                if number % batch_size == 0:
                    while Path(gates, f"hold-{shard_index}").exists():
                        FOREVER.wait(LOOK_SECS)
                    if Path(gates, "pace").exists():
                        FOREVER.wait(step_secs)
                yield x[at], y[at]

        signature: Any = tuple(tf.TensorSpec(array.shape[1:], array.dtype) for array in (x, y))
        return tf.data.Dataset.from_generator(examples, output_signature=signature)

    def evaluate() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(module.data())

    if front_end == "graph":
        return psfleet.GraphProgram(loss=module.loss, train=train, evaluate=evaluate)
    if front_end == "gan":
        return psfleet.GraphProgram(losses=module.build().losses, train=train, evaluate=evaluate)
    keras_program = module.build()
    return psfleet.KerasProgram(model=keras_program.model, loss=keras_program.loss, train=train)
