"""A regression of one variable for studies: it counts the readings of its data, and its steps can be held."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

import psfleet

v1 = tf.compat.v1

EXAMPLES = 16
LOOK_SECS = 0.02
FOREVER = threading.Event()
"""Never set: waiting for it is a pause."""
ENDS = {"sys.exit": sys.exit, "os._exit": os._exit}


def build(
    folder: str, factor: float = 1.0, end: str = "", predicts: bool = False, gate: str = ""
) -> psfleet.GraphProgram:
    """Fits a number.

    Args:
        folder: Gets a file `reads` with a line for each reading of the training data: the process id.
        factor: Of the loss; its logarithm is NaN below 0.
        end: Function of `ENDS` that the second step calls with 70.
        predicts: Whether it multiplies features by the number, in predictions.
        gate: A folder; while it has a file `hold`, no step ends. Empty: `folder`.
    """
    steps = itertools.count(1)

    def numbers() -> Iterator[np.ndarray]:
        with Path(folder, "reads").open("a") as file:
            file.write(f"{os.getpid()}\n")
        yield from np.linspace(0, 1, EXAMPLES, dtype=np.float32)

    def data(shard_index: int, num_shards: int) -> tf.data.Dataset:
        del shard_index, num_shards
        return tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.float32))

    def evaluate() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(np.linspace(0, 1, EXAMPLES, dtype=np.float32))

    def compute(x: np.ndarray) -> np.ndarray:
        while Path(gate or folder, "hold").exists():
            FOREVER.wait(LOOK_SECS)
        if end and next(steps) == 2:
            ENDS[end](70)
        return x

    def loss(x: tf.Tensor) -> tf.Tensor:
        w = v1.get_variable("w", [], initializer=v1.ones_initializer())
        computed = tf.ensure_shape(tf.numpy_function(compute, [x], tf.float32), x.shape)
        return tf.reduce_mean(tf.square(w * computed - 3.0)) * (1.0 + tf.math.log(factor))

    def predict(x: tf.Tensor) -> tf.Tensor:
        return v1.get_variable("w", []) * tf.cast(x, tf.float32)

    return psfleet.GraphProgram(loss=loss, train=data, evaluate=evaluate, predict=predict if predicts else None)
