"""A linear model of the rows of one embedding table, as a Keras and as a graph program with the same tensors."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import layers

import psfleet

WIDTH, SEEN = 4, 40
"""Width of a row; rows from `SEEN` on are in no example, but for that after the last one."""
NUM_EXAMPLES = 200
NAME = "user/embeddings"
FOREVER = threading.Event()
"""Never set: waiting for it paces the data."""
POLL_SECS = 0.02
DEATH = "die-after-reading"
"""A file in the folder of gates: the worker that removes it after it has read the rows of a step dies."""


def build(
    rows: int = 100, front_end: str = "keras", gates: str = "", step_secs: float = 0.0, largest: int = SEEN - 1
) -> psfleet.KerasProgram | psfleet.GraphProgram:
    """The program.

    Args:
        rows: Of the table.
        front_end: keras or graph.
        gates: A folder: while it has a file `pace`, each example takes `step_secs`; while it has a file `hold-N`, the
            data of shard N wait; and of a graph program the file `DEATH`.
        largest: The largest id in the data.
    """

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        ids, y = data(largest)

        def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for at in range(shard_index, NUM_EXAMPLES, num_shards):
                if gates and Path(gates, "pace").exists():
                    FOREVER.wait(step_secs)
                while gates and Path(gates, f"hold-{shard_index}").exists():
                    FOREVER.wait(POLL_SECS)
                yield ids[at], y[at]

        signature: Any = (tf.TensorSpec([3], tf.int64), tf.TensorSpec([1], tf.float32))
        return tf.data.Dataset.from_generator(examples, output_signature=signature)

    def evaluate() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(data(largest))

    if front_end == "graph":
        return psfleet.GraphProgram(loss=lambda batch: loss(batch, rows, gates), train=train, evaluate=evaluate)
    return psfleet.KerasProgram(model=lambda: model(rows), loss="mse", train=train, evaluate=evaluate)


def model(rows: int) -> keras.Model:
    """Ids `[batch, 3]` to `[batch, 1]`; the table is used twice, once with ids that the model computes."""
    ids = keras.Input((3,), dtype="int64")
    table = layers.Embedding(rows, WIDTH, name="user")
    found = [layers.Flatten()(table(ids)), layers.Flatten()(table(ids[:, :1] + 1))]
    weights = keras.initializers.Constant(initial_kernel())
    out = layers.Dense(1, kernel_initializer=weights, name="out")(layers.Concatenate()(found))
    return keras.Model(ids, out)


def loss(batch: tuple[tf.Tensor, tf.Tensor], rows: int, gates: str = "") -> tf.Tensor:
    """The mean squared error of the same model, `[]`."""
    ids, y = batch

    def table() -> Any:
        with v1.variable_scope("user", reuse=v1.AUTO_REUSE):
            return v1.get_variable("embeddings", [rows, WIDTH], initializer=v1.random_uniform_initializer())

    with v1.variable_scope("out"):
        kernel = v1.get_variable("kernel", [4 * WIDTH, 1], initializer=v1.constant_initializer(initial_kernel()))
        bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
    found = [tf.nn.embedding_lookup(table(), ids), tf.gather(table(), ids[:, :1] + 1)]
    features = tf.reshape(tf.concat(found, 1), [-1, 4 * WIDTH])
    if gates:
        with tf.control_dependencies([tf.numpy_function(lambda _: _die(gates), [features], tf.bool)]):
            features = tf.identity(features)
    return tf.reduce_mean(tf.square(features @ kernel + bias - y))


def _die(gates: str) -> np.bool_:
    try:
        Path(gates, DEATH).unlink()
    except FileNotFoundError:
        return np.False_
    os.kill(os.getpid(), signal.SIGKILL)
    return np.True_


def initial_kernel() -> np.ndarray:
    """`[4 * WIDTH, 1]` float32."""
    return np.random.default_rng(5).normal(size=(4 * WIDTH, 1)).astype(np.float32)


def data(largest: int = SEEN - 1) -> tuple[np.ndarray, np.ndarray]:
    """Ids `[NUM_EXAMPLES, 3]` int64 up to `largest`, and targets `[NUM_EXAMPLES, 1]` float32."""
    random = np.random.default_rng(11)
    ids = random.integers(0, SEEN, (NUM_EXAMPLES, 3))
    ids[7, 1] = largest
    return ids.astype(np.int64), random.normal(size=(NUM_EXAMPLES, 1)).astype(np.float32)


def gradient(
    values: dict[str, np.ndarray], worker: int, batch: tuple[np.ndarray, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The gradient of every tensor, all rows of the table included; see `support.replay`."""
    del worker
    ids, y = batch
    read = np.concatenate([ids, ids[:, :1] + 1], 1)
    features = values[NAME][read].reshape(len(ids), -1)
    errors = 2 * (features @ values["out/kernel"] + values["out/bias"] - y) / len(ids)
    of_rows = np.zeros_like(values[NAME])
    np.add.at(of_rows, read.reshape(-1), (errors @ values["out/kernel"].T).reshape(-1, WIDTH))
    return {NAME: of_rows, "out/kernel": features.T @ errors, "out/bias": errors.sum(0)}, {}
