"""Programs in two parts, with all that crosses between them: state, penalties, loops, and random numbers."""

from __future__ import annotations

from typing import Any

import exact_graph_program
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
    """A graph program: the perceptron of `exact_graph_program`, with its last layer in part 1, as variable scopes."""
    return psfleet.GraphProgram(loss=loss, train=exact_graph_program.train)


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


def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    """Every `num_shards`-th example."""
    random = np.random.default_rng(5)
    label = random.integers(0, CLASSES, NUM_EXAMPLES)
    x = random.normal(size=(NUM_EXAMPLES, ROWS, FEATURES)) + 0.5 * label[:, None, None]
    examples = (x.astype(np.float32), label.astype(np.int32))
    return tf.data.Dataset.from_tensor_slices(examples).shard(num_shards, shard_index)


def loss(batch: Any) -> tf.Tensor:
    """Mean cross-entropy, a float32 scalar; it depends on a moving average that part 1 changes."""
    x, label = batch
    values = exact_graph_program.initial_weights()
    with v1.variable_scope("hidden"):
        weights, bias = (v1.get_variable(name, initializer=values[f"hidden/{name}"]) for name in ("weights", "bias"))
        hidden = tf.tanh(tf.matmul(x, weights) + bias)
    with psfleet.part(1), v1.variable_scope("out"), tf.name_scope("second"):
        weights, bias = (v1.get_variable(name, initializer=values[f"out/{name}"]) for name in ("weights", "bias"))
        mean = v1.get_variable("mean", initializer=np.zeros(len(values["hidden/bias"]), np.float32), trainable=False)
        before = mean.read_value()
        with tf.control_dependencies([before]):
            moved = mean.assign(0.9 * before + 0.1 * tf.reduce_mean(hidden, axis=0))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moved.op)
        logits = tf.matmul(hidden - before, weights) + bias
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
