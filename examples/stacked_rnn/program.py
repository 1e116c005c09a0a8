"""Two LSTM layers on two parts of a replica, unrolled over the rows of 8x8 digits."""

from __future__ import annotations

import gzip
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import psfleet

SIDE, LEVELS, CLASSES = 8, 16, 10
TEST_EVERY = 5
"""Digits 0, 5, 10, … are the test set."""


def build(digits: str, units: int = 256) -> psfleet.KerasProgram:
    """Returns the training program.

    Args:
        digits: File with a digit in each line: 64 values in 0..16, row by row, and the label.
        units: Of the second layer; the first one has half as many more, so that both take about the same time.
    """
    with gzip.open(Path(digits), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    pixels, labels = table[:, :-1].reshape(-1, SIDE, SIDE) / LEVELS, table[:, -1].astype(np.int32)
    is_test = np.arange(len(labels)) % TEST_EVERY == 0

    def examples(which: np.ndarray) -> tf.data.Dataset:
        """Pixels [8, 8] float32 in [0, 1], label [] int32."""
        return tf.data.Dataset.from_tensor_slices((pixels[which], labels[which]))

    return psfleet.KerasProgram(
        model=lambda: stacked_rnn(units),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        train=lambda shard_index, num_shards: examples(~is_test).shard(num_shards, shard_index),
        evaluate=lambda: examples(is_test),
    )


def stacked_rnn(units: int) -> keras.Model:
    """A model from pixels [batch, 8, 8] in [0, 1] to logits [batch, 10]: row t is the input of step t.

    Both layers are unrolled together: part 1 begins with step t when part 0 has ended it. An LSTM layer of Keras gives
    the outputs of all steps at once, and the second layer would begin when the first one has ended.
    """
    pixels = keras.Input([SIDE, SIDE])
    with psfleet.part(0):
        first = layers.LSTMCell(units * 3 // 2, name="first")
        state = zeros(pixels, units * 3 // 2)
    with psfleet.part(1):
        second = layers.LSTMCell(units, name="second")
        second_state = zeros(pixels, units)
    for row in range(SIDE):
        with psfleet.part(0):
            hidden, state = first(pixels[:, row], state)
        with psfleet.part(1):
            outputs, second_state = second(hidden, second_state)
    with psfleet.part(1):
        logits = layers.Dense(CLASSES, name="out")(outputs)
    return keras.Model(pixels, logits)


def zeros(pixels: keras.KerasTensor, units: int) -> list[keras.KerasTensor]:
    """The state of a layer before the first step: twice [batch, units]."""
    empty = ops.repeat(ops.zeros_like(pixels[:, 0, :1]), units, axis=1)
    return [empty, empty]
