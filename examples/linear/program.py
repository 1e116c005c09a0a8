"""Linear regression as a TensorFlow 1 graph function: y = 2 x + noise, so that W approaches 2 and b approaches 0."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import psfleet

NUM_EXAMPLES = 10_000
NUM_HELD_OUT = 1_000
TRAINING_SEED = 1
HELD_OUT_SEED = 2


def build(slope: float = 2.0, noise: float = 0.5) -> psfleet.GraphProgram:
    """Returns the training program; `noise` is the standard deviation of y around slope * x."""

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        return points(TRAINING_SEED, NUM_EXAMPLES, slope, noise).shard(num_shards, shard_index)

    def evaluate() -> tf.data.Dataset:
        return points(HELD_OUT_SEED, NUM_HELD_OUT, slope, noise)

    return psfleet.GraphProgram(loss=loss, train=train, evaluate=evaluate)


def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """Mean squared error, a float32 scalar, of x [batch] and y [batch], float32 both."""
    x, y = batch
    weight = tf.compat.v1.get_variable("W", [])
    bias = tf.compat.v1.get_variable("b", [])
    error = tf.reduce_mean(tf.square(weight * x + bias - y))
    tf.compat.v1.summary.scalar("W", weight)
    tf.compat.v1.summary.scalar("b", bias)
    tf.compat.v1.summary.scalar("loss", error)
    return error


def points(seed: int, num_points: int, slope: float, noise: float) -> tf.data.Dataset:
    """Unbatched examples (x [], y []) float32 with x uniform in [-1, 1), determined by the seed."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, num_points)
    y = slope * x + random.normal(0, noise, num_points)
    return tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.float32)))
