"""Programs in two parts, with all that crosses between them: state, penalties, loops, and random numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import layers

import psfleet

ROWS, FEATURES, UNITS, CLASSES = 5, 6, 8, 3
NUM_EXAMPLES = 120
SECOND = ("second", "norm", "drop", "out")
"""Names of the layers of part 1 of the Keras model."""


def graph() -> psfleet.GraphProgram:
    """A graph program with a loop and a moving average in part 1."""
    return psfleet.GraphProgram(loss=loss, train=train)


def recurrent(unroll: bool = True) -> psfleet.KerasProgram:
    """A Keras program.

    Args:
        unroll: Whether the recurrent layers are loops of Python, or loops of TensorFlow.
    """
    return psfleet.KerasProgram(
        model=lambda: model(unroll),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        train=train,
        evaluate=lambda: train(0, 1).take(40),
    )


def model(unroll: bool) -> keras.Model:
    """From sequences `[batch, ROWS, FEATURES]` to logits `[batch, CLASSES]`."""

    def random(seed: int) -> dict[str, keras.Initializer]:
        names = ("kernel_initializer", "recurrent_initializer")
        return {name: keras.initializers.GlorotUniform(seed=seed + at) for at, name in enumerate(names)}

    inputs = keras.Input((ROWS, FEATURES))
    first = layers.LSTM(UNITS, return_sequences=True, unroll=unroll, name="first", **random(1))(inputs)
    shortcut = layers.Dense(UNITS, name="shortcut", kernel_initializer=keras.initializers.GlorotUniform(seed=5))
    with psfleet.part(1):
        x = layers.LSTM(UNITS, unroll=unroll, name="second", kernel_regularizer="l2", **random(3))(first)
        x = layers.BatchNormalization(name="norm")(x)
        x = layers.Dropout(0.2, seed=7, name="drop")(x)
    x = x + shortcut(layers.Flatten()(first))
    with psfleet.part(1):
        outputs = layers.Dense(CLASSES, name="out", kernel_initializer=keras.initializers.GlorotUniform(seed=9))(x)
        return keras.Model(inputs, outputs)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Sequences `[NUM_EXAMPLES, ROWS, FEATURES]` float32, and the class of each, `[NUM_EXAMPLES]` int32."""
    random = np.random.default_rng(5)
    label = random.integers(0, CLASSES, NUM_EXAMPLES)
    x = random.normal(size=(NUM_EXAMPLES, ROWS, FEATURES)) + 0.5 * label[:, None, None]
    return x.astype(np.float32), label.astype(np.int32)


def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    """Every `num_shards`-th example."""
    return tf.data.Dataset.from_tensor_slices(data()).shard(num_shards, shard_index)


def loss(batch: Any) -> tf.Tensor:
    """Mean cross-entropy, a float32 scalar; it depends on a moving average of what part 1 gets."""
    x, label = batch
    hidden = tf.tanh(_dense("first", tf.reshape(x, [-1, ROWS * FEATURES]), UNITS, seed=1))
    with psfleet.part(1):
        mean = v1.get_variable("mean", [UNITS], initializer=v1.zeros_initializer(), trainable=False)
        before = mean.read_value()
        with tf.control_dependencies([before]):
            moved = mean.assign(0.9 * before + 0.1 * tf.reduce_mean(hidden, axis=0))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moved.op)
        with tf.name_scope("second"):
            _, moved_on = tf.while_loop(
                lambda at, _: at < 2, lambda at, value: (at + 1, tf.tanh(value) + before), [tf.constant(0), hidden]
            )
            logits = _dense("out", moved_on, CLASSES, seed=2)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))


def _dense(name: str, x: tf.Tensor, units: int, seed: int) -> tf.Tensor:
    with v1.variable_scope(name):
        weights = np.random.default_rng(seed).normal(size=(x.shape[1], units)) / np.sqrt(x.shape[1])
        kernel = v1.get_variable("kernel", initializer=weights.astype(np.float32))
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return tf.matmul(x, kernel) + bias
