"""Training programs of the styles that users write, each on twelve examples; see tests/fleet/test_keras_styles.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from psfleet import KerasProgram
from support.keras_models import CLASSES, by_name, partly_frozen
from support.keras_styles import Scaled, TwoTowers

RANDOM = np.random.default_rng(11)
NUMBERS = RANDOM.normal(size=(12, 5)).astype(np.float32)
TARGETS = RANDOM.normal(size=(12, 1)).astype(np.float32)
IMAGES = RANDOM.normal(size=(12, 32, 32, 3)).astype(np.float32)
WORDS = RANDOM.integers(20, size=(12, 6)).astype(np.int32)
LABELS = RANDOM.integers(3, size=12).astype(np.int32)
TEXTS = np.array([f"{word} and a {other}" for word in ("cat", "dog", "bird") for other in ("fish", "owl", "ox", "elk")])


def program(model: Callable[[], keras.Model], data: tf.data.Dataset, loss: Any, metrics: Any = None) -> KerasProgram:
    """A program that trains on a data set and evaluates on the same."""
    return KerasProgram(
        model=model,
        loss=loss,
        train=lambda shard, shards: data.shard(shards, shard),
        evaluate=lambda: data,
        metrics=metrics,
    )


def examples(x: Any, y: Any) -> tf.data.Dataset:
    """The examples of arrays `[12, ...]` in any structure."""
    return tf.data.Dataset.from_tensor_slices((x, y))


def normalized() -> KerasProgram:
    """Inputs are scaled by weights from before training, and normalized by moving averages."""

    def model() -> keras.Model:
        scale = layers.Normalization()
        scale.adapt(NUMBERS)
        hidden = [layers.Dense(4, use_bias=False), layers.BatchNormalization()]
        return keras.Sequential([keras.Input((5,)), scale, *hidden, layers.Dense(3)])

    return program(model, examples(NUMBERS, LABELS), CLASSES, ["accuracy"])


def subclassed() -> KerasProgram:
    """A subclass of `keras.Model` with dictionaries in and out, and a loss of its own added."""
    x = {"user": WORDS[:, 0], "item": WORDS[:, 1]}
    losses = {"score": "mse", "label": CLASSES}
    return program(TwoTowers, examples(x, {"score": TARGETS, "label": LABELS}), losses, {"label": "accuracy"})


def asymmetric(truth: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
    """A loss function `[batch, 1]` -> `[batch]` that weighs negative errors twice."""
    error = predicted - tf.cast(truth, predicted.dtype)
    return tf.reduce_mean(tf.where(error < 0, 2.0 * tf.square(error), tf.square(error)), axis=-1)


def custom() -> KerasProgram:
    """A custom layer with weights that move and count, and a custom loss function."""

    def model() -> keras.Model:
        return keras.Sequential([keras.Input((5,)), Scaled(), layers.Dense(1)])

    return program(model, examples(NUMBERS, TARGETS), asymmetric, ["mae"])


@keras.saving.register_keras_serializable()
def squared(x: tf.Tensor) -> tf.Tensor:
    """What the layer of `lambdas` computes."""
    return tf.concat([x, tf.square(x)], axis=-1)


def lambdas() -> KerasProgram:
    """`Lambda` layers of a function and of a lambda expression."""

    def model() -> keras.Model:
        inputs = keras.Input((5,))
        x = layers.Lambda(squared, output_shape=(10,))(inputs)
        return keras.Model(inputs, layers.Lambda(lambda y: 0.5 * y, output_shape=(1,))(layers.Dense(1)(x)))

    return program(model, examples(NUMBERS, TARGETS), "mse", ["mae"])


def mobile_net_v2() -> KerasProgram:
    """The first blocks of MobileNetV2 for images of 32 x 32, with a head; the whole has six times as many layers."""

    def model() -> keras.Model:
        whole = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, include_top=False)
        features = whole.get_layer("block_2_add").output
        return keras.Model(whole.input, layers.Dense(3)(layers.GlobalAveragePooling2D()(features)))

    return program(model, examples(IMAGES, LABELS), CLASSES, ["accuracy"])


def dictionaries() -> KerasProgram:
    """Several inputs and outputs by name."""
    x = {"a": NUMBERS[:, :3], "b": NUMBERS[:, 3:]}
    losses = {"label": CLASSES, "score": "mse"}
    return program(by_name, examples(x, {"label": LABELS, "score": TARGETS}), losses, {"label": "accuracy"})


def _vocabulary() -> layers.TextVectorization:
    split = layers.TextVectorization(max_tokens=20, output_sequence_length=4)
    split.adapt(TEXTS)
    return split


def _reader() -> list[layers.Layer]:
    return [layers.Embedding(20, 4), layers.GlobalAveragePooling1D(), layers.Dense(3)]


def text_in_data() -> KerasProgram:
    """The data set turns texts into numbers of words."""
    split = _vocabulary()
    data = examples(TEXTS, LABELS).map(lambda text, label: (split(text), label))
    return program(
        lambda: keras.Sequential([keras.Input((4,), dtype="int64"), *_reader()]), data, CLASSES, ["accuracy"]
    )


def text_in_model() -> KerasProgram:
    """The model turns texts into numbers of words."""

    def model() -> keras.Model:
        return keras.Sequential([keras.Input((), dtype="string"), _vocabulary(), *_reader()])

    return program(model, examples(TEXTS, LABELS), CLASSES, ["accuracy"])


def frozen() -> KerasProgram:
    """The layers before the dropout are not trained, moving averages included."""
    return program(partly_frozen, examples(IMAGES[:, :6, :6, :1], LABELS), CLASSES, ["accuracy"])


def regularized() -> KerasProgram:
    """Penalties on weights and activities; one kernel is trained by its penalty only."""

    def model() -> keras.Model:
        inputs = keras.Input((5,))
        dense = layers.Dense(4, activity_regularizer=keras.regularizers.L1(0.1))
        unseen = layers.Dense(1, kernel_regularizer="l2", use_bias=False, name="unseen")
        return keras.Model(inputs, layers.Dense(1)(dense(inputs)) + unseen(layers.Rescaling(0.0)(inputs)))

    return program(model, examples(NUMBERS, TARGETS), "mse", ["mae"])


PROGRAMS: Mapping[str, Callable[[], KerasProgram]] = {
    "normalized": normalized,
    "subclassed": subclassed,
    "custom": custom,
    "lambdas": lambdas,
    "mobile_net_v2": mobile_net_v2,
    "dictionaries": dictionaries,
    "text_in_data": text_in_data,
    "text_in_model": text_in_model,
    "frozen": frozen,
    "regularized": regularized,
}
