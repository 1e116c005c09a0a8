"""Logistic regression on scikit-learn's breast cancer data, as a sum over all examples that two workers share."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import psfleet

PENALTY = 0.5
"""Factor of the squared norm of the weights, as with `LogisticRegression(C=1)`."""


def build() -> psfleet.GraphProgram:
    """Returns the training program. A batch is the whole shard of a worker: see `batch_size` in the job."""
    x, y = load()
    num_examples, num_features = x.shape

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        # The mean over the workers of these sums is the mean over all examples. An example of weight 0 makes shards
        # equal in size.
        rest = -num_examples % num_shards
        weight = np.repeat([num_shards / num_examples, 0], [num_examples, rest])
        padded = np.pad(x, [(0, rest), (0, 0)]), np.pad(y, (0, rest)), weight.astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(padded).shard(num_shards, shard_index)

    def loss(batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """A float32 scalar, of x [batch, features], y [batch] and weight [batch], all float32."""
        features, label, weight = batch
        slope = tf.compat.v1.get_variable("W", [num_features], initializer=tf.compat.v1.zeros_initializer())
        bias = tf.compat.v1.get_variable("b", [], initializer=tf.compat.v1.zeros_initializer())
        logits = tf.linalg.matvec(features, slope) + bias
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_sum(weight * entropy) + PENALTY / num_examples * tf.reduce_sum(tf.square(slope))

    return psfleet.GraphProgram(loss=loss, train=train)


def load() -> tuple[np.ndarray, np.ndarray]:
    """Standardized features `[569, 30]` and labels `[569]`, float32 both; needs scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y.astype(np.float32)
