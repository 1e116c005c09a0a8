"""What every contender trains: a ReLU MLP 784-hidden-hidden-10 on synthetic fixed data.

It is a complete psfleet program; the other contenders import its network and data.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import psfleet

NUM_PIXELS = 784
NUM_CLASSES = 10
NUM_EXAMPLES = 1000
"""Examples in one worker's shard: 10 batches of 100, 3 MB, so that they stay in memory."""


def build(hidden: int) -> psfleet.GraphProgram:
    """The benchmark's program for an MLP with two hidden layers of `hidden` units each."""

    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return mlp_loss(*batch, hidden=hidden)

    return psfleet.GraphProgram(loss=loss, train=train)


def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    """One worker's examples: (image [784] float32, label [] int32); a shard's data do not depend on `num_shards`."""
    del num_shards
    return tf.data.Dataset.from_tensor_slices(synthetic(shard_index))


def synthetic(shard_index: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """The same random examples at each call: images [1000, 784] in [0, 1) and labels [1000] in 0..9."""
    random = np.random.default_rng(shard_index)
    images = random.random((NUM_EXAMPLES, NUM_PIXELS), dtype=np.float32)
    return images, random.integers(NUM_CLASSES, size=NUM_EXAMPLES, dtype=np.int32)


def mlp_loss(images: tf.Tensor, labels: tf.Tensor, *, hidden: int) -> tf.Tensor:
    """Mean cross-entropy, a float32 scalar, of images [batch, 784] float32 and labels [batch] int32."""
    activations = images
    widths = (NUM_PIXELS, hidden, hidden, NUM_CLASSES)
    for index, (num_inputs, num_outputs) in enumerate(itertools.pairwise(widths)):
        with tf.compat.v1.variable_scope(f"layer_{index}"):
            weights = tf.compat.v1.get_variable("weights", [num_inputs, num_outputs])
            biases = tf.compat.v1.get_variable("biases", [num_outputs], initializer=tf.compat.v1.zeros_initializer())
        logits = tf.matmul(activations, weights) + biases
        activations = tf.nn.relu(logits)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
