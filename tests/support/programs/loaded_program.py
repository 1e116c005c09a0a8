"""A regression whose data are made of TensorFlow's operations alone, as loaders need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import psfleet

FEATURES = 4
EXAMPLES = 60


def build(gates: str = "", step_secs: float = 0.0) -> psfleet.GraphProgram:
    """A linear model of the sum of sines.

    Args:
        gates: A folder. While it has a file `pace`, each example takes `step_secs`.
        step_secs: Seconds for an example.
    """

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        examples = tf.data.Dataset.range(EXAMPLES).shard(num_shards, shard_index).map(_example)
        return examples.map(paced(gates, step_secs)) if step_secs else examples

    return psfleet.GraphProgram(loss=_loss, train=train)


def paced(gates: str, step_secs: float) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Maps an example to itself; arguments as of `build`. Labels are of shape `[1]`."""

    def wait(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Of an element: TensorFlow looks for the files of a constant pattern once.
        name = tf.where(tf.math.is_nan(y[0]), "", "pace")
        num_found = tf.size(tf.raw_ops.MatchingFiles(pattern=tf.strings.join([gates, name], "/")))
        until = tf.timestamp() + step_secs * tf.cast(num_found, tf.float64)
        (waited,) = tf.while_loop(lambda now: now < until, lambda now: tf.timestamp(), [tf.timestamp()])
        return x, y + tf.cast(waited * 0, tf.float32)

    return wait


def _example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.random.stateless_normal([FEATURES], tf.stack([number, 1]))
    return x, tf.reduce_sum(tf.sin(x), keepdims=True)


def _loss(batch: Any) -> tf.Tensor:
    x, y = batch
    zeros = tf.compat.v1.zeros_initializer()
    return tf.reduce_mean(tf.square(tf.matmul(x, tf.compat.v1.get_variable("w", [FEATURES, 1], initializer=zeros)) - y))
