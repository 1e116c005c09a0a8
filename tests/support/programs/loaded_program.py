"""A regression whose data are made of TensorFlow's operations alone, as loaders need them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

import psfleet

FEATURES = 4
EXAMPLES = 60


def build(gates: str = "", step_secs: float = 0.0) -> psfleet.GraphProgram:
    """A linear model of the sum of sines.

    Args:
        gates: A folder. While it has a file `pace`, each example takes `step_secs`; empty: each does.
        step_secs: Seconds for an example.
    """

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        examples = tf.data.Dataset.range(EXAMPLES).shard(num_shards, shard_index).map(_example)
        return paced(examples, f"{gates}/pace" if gates else __file__, step_secs) if step_secs else examples

    return psfleet.GraphProgram(loss=_loss, train=train)


def paced(examples: tf.data.Dataset, file: str, secs: float) -> tf.data.Dataset:
    """Sleeps before each example while there is a file: a loop until the time has passed would occupy a core."""
    at_once = tf.data.Dataset.from_tensors(0.0).repeat()
    late = at_once.apply(testing.sleep(round(secs * 1e6)))

    def which(number: tf.Tensor) -> tf.Tensor:
        # Of an element: TensorFlow looks for the files of a constant pattern once.
        pattern = tf.where(number < 0, "", file)
        return tf.cast(tf.size(tf.raw_ops.MatchingFiles(pattern=pattern)) > 0, tf.int64)

    zeros = tf.data.Dataset.choose_from_datasets([at_once, late], tf.data.Dataset.range(len(examples)).map(which))
    late_or_not = tf.data.Dataset.zip((examples, zeros)).map(lambda example, zero: (example[0], example[1] + zero))
    return late_or_not.apply(tf.data.experimental.assert_cardinality(len(examples)))


def _example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.random.stateless_normal([FEATURES], tf.stack([number, 1]))
    return x, tf.reduce_sum(tf.sin(x), keepdims=True)


def _loss(batch: Any) -> tf.Tensor:
    x, y = batch
    zeros = tf.compat.v1.zeros_initializer()
    return tf.reduce_mean(tf.square(tf.matmul(x, tf.compat.v1.get_variable("w", [FEATURES, 1], initializer=zeros)) - y))
