"""Weights that say how many steps they have made: each step reduces every one of them by the learning rate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import psfleet

v1 = tf.compat.v1

NAMES = ("first", "second")
SIZE = 4096
"""Of each tensor, so that each of two ps has one."""
FOREVER = threading.Event()
"""Never set: waiting for it paces the data."""


def build(gates: str, step_secs: float) -> psfleet.GraphProgram:
    """The program.

    Args:
        gates: A folder; while it has a file `pace`, every shard takes `step_secs` for each example.
        step_secs: Seconds for an example.
    """

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        del shard_index, num_shards

        def examples() -> Iterator[np.float32]:
            while True:
                if Path(gates, "pace").exists():
                    FOREVER.wait(step_secs)
                yield np.float32(0)

        return tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec([], tf.float32))

    return psfleet.GraphProgram(loss=_loss, train=train)


def _loss(x: Any) -> Any:
    """Its gradient is 1 for each weight."""
    weights = [v1.get_variable(name, [SIZE], initializer=v1.zeros_initializer()) for name in NAMES]
    return tf.add_n([tf.reduce_sum(each) for each in weights]) + tf.reduce_sum(x)
