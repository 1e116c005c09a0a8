"""A regression with a right answer, whose weights hold a mark that is easily found in captured traffic.

Until the file `go` lies beside it, every example takes a while: a test has time to look at the fleet while it trains.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import psfleet

v1 = tf.compat.v1

ANSWER = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
"""The weights that fit the data; `[8]`."""
MARK = 1234.5678
NUM_MARKS = 4096
EXAMPLES = 64
STEP_SECS = 0.2
FOREVER = threading.Event()
"""Never set: waiting for it paces the data."""


def build() -> psfleet.GraphProgram:
    """The program; a batch is one example."""
    return psfleet.GraphProgram(loss=_loss, train=_train)


def _loss(batch: Any) -> Any:
    x, y = batch
    guess = tf.reduce_sum(x * v1.get_variable("weights", [ANSWER.size], initializer=v1.zeros_initializer()), axis=1)
    mark = v1.get_variable("mark", [NUM_MARKS], initializer=v1.constant_initializer(MARK))
    # Part of the loss, so that it travels with the other weights, and never changed.
    return tf.reduce_mean(tf.square(guess - y)) + 0.0 * tf.reduce_sum(mark)


def _train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    go = Path(__file__).with_name("go")

    def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        features = np.random.default_rng(7 + shard_index).standard_normal((EXAMPLES, ANSWER.size)).astype(np.float32)
        for x in features:
            if not go.exists():
                FOREVER.wait(STEP_SECS)
            yield x, x @ ANSWER

    signature = (tf.TensorSpec([ANSWER.size], tf.float32), tf.TensorSpec([], tf.float32))
    dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(EXAMPLES))
