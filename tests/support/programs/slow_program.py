"""A small regression with slow steps, until the file `/tmp/released` is there.

A worker that finds `/tmp/eat-<shard>` removes it, and takes all the memory that it can get.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import psfleet

FEATURES = 8
EXAMPLES = 64
RELEASED = Path("/tmp/released")
FOREVER = threading.Event()
"""Never set: waiting for it paces the data."""


def build(step_secs: float = 0.0, fail_at: int | None = None, nan_at: int | None = None) -> psfleet.GraphProgram:
    """A linear regression; an example is a batch and so a step.

    Args:
        step_secs: Seconds for an example.
        fail_at: The example at which the data raise.
        nan_at: The example with a NaN in it.
    """

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            x, y = _data(num_shards * EXAMPLES)
            for count, at in enumerate(range(shard_index, num_shards * EXAMPLES, num_shards)):
                if not RELEASED.exists():
                    FOREVER.wait(step_secs)
                if (gate := Path(f"/tmp/eat-{shard_index}")).exists():
                    gate.unlink()
                    _take_all_memory()
                if count == fail_at:
                    raise RuntimeError(f"example {count} cannot be read")
                yield x[at], y[at] * (np.float32("nan") if count == nan_at else np.float32(1))

        signature = (tf.TensorSpec([FEATURES], tf.float32), tf.TensorSpec([1], tf.float32))
        dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(EXAMPLES))

    return psfleet.GraphProgram(
        loss=_loss, train=train, evaluate=lambda: tf.data.Dataset.from_tensor_slices(_data(EXAMPLES))
    )


def _take_all_memory() -> None:
    blocks = []
    while True:
        blocks.append(np.ones(64 * 1024 * 1024, np.uint8))


def _loss(batch: Any) -> Any:
    x, y = batch
    guess = tf.matmul(x, tf.compat.v1.get_variable("weights", [FEATURES, 1]))
    with psfleet.part(1):
        return tf.reduce_mean(tf.square(guess - y))


def _data(count: int) -> tuple[np.ndarray, np.ndarray]:
    """x `[count, FEATURES]` and y `[count, 1]`, the sum of x; float32."""
    x = np.random.default_rng(7).standard_normal((count, FEATURES)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)
