"""Keras models of many kinds, with twelve examples of data and a loss for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    """Twelve examples of a shape, float32 `[12, *shape]`."""
    return RANDOM.normal(size=(12, *shape)).astype(np.float32)


def integers(high: int, *shape: int) -> np.ndarray:
    """Twelve examples of integers below a limit, int32 `[12, *shape]`."""
    return RANDOM.integers(high, size=(12, *shape)).astype(np.int32)


def mlp() -> keras.Model:
    """Two dense layers."""
    return keras.Sequential([keras.Input((5,)), layers.Dense(7, activation="relu"), layers.Dense(3)])


def convolution() -> keras.Model:
    """Convolution, moving averages and two dropouts."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def recurrent() -> keras.Model:
    """An LSTM with dropout."""
    return keras.Sequential([keras.Input((5, 3)), layers.LSTM(4, dropout=0.2), layers.Dense(1)])


def by_name() -> keras.Model:
    """Two inputs and two outputs, both named."""
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    both = layers.Concatenate()([a, b])
    outputs = {"label": layers.Dense(3, name="label")(both), "score": layers.Dense(1, name="score")(both)}
    return keras.Model({"a": a, "b": b}, outputs)


def several() -> keras.Model:
    """Two inputs and two outputs, with a masked embedding, a recurrent layer, moving averages and dropout."""
    words, numbers = keras.Input((6,), dtype="int32", name="words"), keras.Input((3,), name="numbers")
    recurrent = layers.LSTM(4)(layers.Embedding(20, 4, mask_zero=True)(words))
    both = layers.Concatenate()([recurrent, layers.BatchNormalization()(numbers)])
    dropped = layers.Dropout(0.3)(both)
    outputs = {"label": layers.Dense(3, name="label")(dropped), "score": layers.Dense(1, name="score")(dropped)}
    return keras.Model({"words": words, "numbers": numbers}, outputs)


def shared() -> keras.Model:
    """One dense layer that is applied twice."""
    a = keras.Input((4,))
    dense = layers.Dense(4, activation="tanh")
    return keras.Model(a, layers.Dense(1)(dense(dense(a))))


def regularized() -> keras.Model:
    """A dense layer with a weight penalty and an activity penalty."""
    dense = layers.Dense(4, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.1))
    return keras.Sequential([keras.Input((5,)), dense, layers.Dense(1)])


def partly_frozen() -> keras.Model:
    """`convolution` with two layers that are not trained."""
    model = convolution()
    for layer in model.layers[:2]:
        layer.trainable = False
    return model


@keras.saving.register_keras_serializable()
class Subclassed(keras.Model):
    """Has no `training` argument and a gate that the loss does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.unused = layers.Dense(1), layers.Dense(2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """See keras.Model."""
        self.unused(x)
        y = self.dense(x)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(y)))
        return y


CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MODELS: dict[str, tuple[Callable[[], keras.Model], Any, Any, Any]] = {
    "mlp": (mlp, floats(5), integers(3), CLASSES),
    "convolution": (convolution, floats(6, 6, 1), integers(3), CLASSES),
    "recurrent": (recurrent, floats(5, 3), floats(1), "mse"),
    "by_name": (
        by_name,
        {"a": floats(3), "b": floats(2)},
        {"label": integers(3), "score": floats(1)},
        {"label": CLASSES, "score": "mae"},
    ),
    "several": (
        several,
        {"words": integers(20, 6), "numbers": floats(3)},
        {"label": integers(3), "score": floats(1)},
        {"label": CLASSES, "score": "mse"},
    ),
    "shared": (shared, floats(4), floats(1), keras.losses.Huber()),
    "regularized": (regularized, floats(5), floats(1), "mse"),
    "partly_frozen": (partly_frozen, floats(6, 6, 1), integers(3), CLASSES),
    "subclassed": (Subclassed, floats(5), floats(1), "mse"),
}
