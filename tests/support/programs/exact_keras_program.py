"""A small convolutional Keras model with a moving average and a penalty, and without dropout.

In jobs with two parts its dense layers are in part 1.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import psfleet

SIDE, CLASSES = 8, 3
NUM_EXAMPLES = 230


def build() -> psfleet.KerasProgram:
    """The program."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return psfleet.KerasProgram(model=model, loss=loss, train=train)


def model() -> keras.Model:
    """`[batch, SIDE, SIDE, 1]` to logits `[batch, CLASSES]`; the same initial weights each time."""

    def random(seed: int) -> keras.Initializer:
        return keras.initializers.GlorotUniform(seed=seed)

    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(8, 3, use_bias=False, kernel_initializer=random(1), name="conv"),
            layers.BatchNormalization(momentum=0.9, name="norm"),
            layers.Activation("tanh"),
            layers.Flatten(),
        ],
        name="small",
    )
    with psfleet.part(1):
        penalty = keras.regularizers.L2(0.01)
        model.add(layers.Dense(16, "tanh", kernel_initializer=random(2), kernel_regularizer=penalty, name="hidden"))
        model.add(layers.Dense(CLASSES, kernel_initializer=random(3), name="out"))
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    """Pictures `[NUM_EXAMPLES, SIDE, SIDE, 1]` float32, and the class of each, `[NUM_EXAMPLES]` int32."""
    random = np.random.default_rng(21)
    label = random.integers(0, CLASSES, NUM_EXAMPLES)
    pictures = random.normal(size=(NUM_EXAMPLES, SIDE, SIDE, 1)) + 0.5 * label[:, None, None, None]
    return pictures.astype(np.float32), label.astype(np.int32)


def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    """Every `num_shards`-th example."""
    return tf.data.Dataset.from_tensor_slices(data()).shard(num_shards, shard_index)
