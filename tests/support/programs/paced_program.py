"""A small regression whose data wait at gates, so that a test holds and paces a fleet while it trains."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import psfleet

v1 = tf.compat.v1

FEATURES = 8
HIDDEN = 16
EXAMPLES = 64
LOOK_SECS = 0.02
"""Pause between two looks at a closed gate."""
FOREVER = threading.Event()
"""Never set: waiting for it paces the data."""


def build(
    gates: str, step_secs: float, epoch_steps: int = EXAMPLES, holds_gradients: bool = False
) -> psfleet.GraphProgram:
    """A perceptron with one hidden layer; in jobs with two parts its last layer is in part 1.

    Args:
        gates: A folder. While it has a file `hold-<shard>`, that shard gives no example; while it has a file `pace`,
            every shard takes `step_secs` for each example. An evaluation waits while it has a file `hold-evaluation`,
            and this function in worker 0 while it has a file `hold-build`.
        step_secs: Seconds for an example, which is a batch and so a step.
        epoch_steps: Examples of a shard. With spares, each worker changes to another shard after them.
        holds_gradients: Whether a worker computes no gradient while that folder has a file `hold-gradient-<index>`: it
            looks at it again and again, each time by an operation. It adds a byte to the file `begun-<its name>` at the
            beginning, and leaves a file `looked-at-<its name>` while it is held.
    """

    while os.environ.get("PSFLEET_INDEX") == "0" and Path(gates, "hold-build").exists():
        FOREVER.wait(LOOK_SECS)

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            x, y = _data(num_shards * epoch_steps)
            for at in range(shard_index, num_shards * epoch_steps, num_shards):
                while Path(gates, f"hold-{shard_index}").exists():
                    FOREVER.wait(LOOK_SECS)
                if Path(gates, "pace").exists():
                    FOREVER.wait(step_secs)
                yield x[at], y[at]

        signature = (tf.TensorSpec([FEATURES], tf.float32), tf.TensorSpec([1], tf.float32))
        dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(epoch_steps))

    def held_examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while Path(gates, "hold-evaluation").exists():
            FOREVER.wait(LOOK_SECS)
        yield from zip(*_data(EXAMPLES), strict=True)

    def evaluate() -> tf.data.Dataset:
        signature = (tf.TensorSpec([FEATURES], tf.float32), tf.TensorSpec([1], tf.float32))
        return tf.data.Dataset.from_generator(held_examples, output_signature=signature)

    def loss(batch: Any) -> Any:
        gate = Path(gates, f"hold-gradient-{os.environ.get('PSFLEET_INDEX')}")
        with tf.control_dependencies([_opened(gate, batch[0])] if holds_gradients else []):
            return _loss([tf.identity(each) for each in batch])

    return psfleet.GraphProgram(loss=loss, train=train, evaluate=evaluate)


def _opened(gate: Path, x: tf.Tensor) -> tf.Tensor:
    """Is known once the gate is open, after x."""

    def is_held(_: np.bool_) -> np.bool_:
        FOREVER.wait(LOOK_SECS)
        if gate.exists():
            gate.with_name(f"looked-at-{gate.name}").touch()
        return np.bool_(gate.exists())

    def begin(_: np.ndarray) -> np.bool_:
        with gate.with_name(f"begun-{gate.name}").open("ab") as file:
            file.write(b".")
        return np.True_

    first = tf.ensure_shape(tf.numpy_function(begin, [x], tf.bool), [])
    return v1.while_loop(
        lambda held: held, lambda held: tf.ensure_shape(tf.numpy_function(is_held, [held], tf.bool), []), [first]
    )


def _loss(batch: Any) -> Any:
    x, y = batch
    hidden = tf.tanh(tf.matmul(x, v1.get_variable("w1", [FEATURES, HIDDEN])) + v1.get_variable("b1", [HIDDEN]))
    with psfleet.part(1):
        guess = tf.matmul(hidden, v1.get_variable("w2", [HIDDEN, 1])) + v1.get_variable("b2", [1])
    return tf.reduce_mean(tf.square(guess - y))


def _data(count: int) -> tuple[np.ndarray, np.ndarray]:
    """x `[count, FEATURES]` and y `[count, 1]`, the sine of the sum of x; float32."""
    x = np.random.default_rng(7).standard_normal((count, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(axis=1, keepdims=True))
