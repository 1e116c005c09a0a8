"""The model of `examples/lenet` in operations of TensorFlow, for contenders that train no Keras model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

SHAPES = ((5, 5, 1, 20), (20,), (5, 5, 20, 50), (50,), (800, 500), (500,), (500, 10), (10,))
"""Of weights and biases."""
DROPOUT = 0.5


def initial(seed: int) -> list[npt.NDArray[np.float32]]:
    """Weights with the spread of He et al. 2015, for ReLU, and biases of zero."""
    random = np.random.default_rng(seed)
    values = [random.normal(0, np.sqrt(2 / max(1, np.prod(shape[:-1]))), shape) for shape in SHAPES]
    return [np.float32(value if value.ndim > 1 else 0 * value) for value in values]


def logits(weights: Sequence[Any], pixels: tf.Tensor, *, trains: bool) -> tf.Tensor:
    """float32 [batch, 10] of pixels, uint8 [batch, 28, 28]; with dropout if it `trains`."""
    activations = tf.cast(pixels, tf.float32)[..., tf.newaxis] / 255.0
    for kernel, bias in (weights[0:2], weights[2:4]):
        activations = tf.nn.relu(tf.nn.conv2d(activations, kernel, 1, "VALID") + bias)
        activations = tf.nn.max_pool2d(activations, 2, 2, "VALID")
    activations = tf.reshape(activations, [-1, SHAPES[4][0]])
    activations = tf.nn.relu(tf.matmul(activations, weights[4]) + weights[5])
    if trains:
        activations = tf.nn.dropout(activations, DROPOUT)
    return tf.matmul(activations, weights[6]) + weights[7]


def mean_loss(weights: Sequence[Any], pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy in training, a float32 scalar; labels are int32 [batch]."""
    outputs = logits(weights, pixels, trains=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs))


def num_right(weights: Sequence[Any], pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """How many images of a batch have the largest logit at their label, an int32 scalar."""
    found = tf.argmax(logits(weights, pixels, trains=False), 1, tf.int32)
    return tf.reduce_sum(tf.cast(tf.equal(found, labels), tf.int32))
