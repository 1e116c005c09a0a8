"""Keras models in the styles that programs use, with twelve examples of data and a loss for each; see keras_models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.src.applications import mobilenet

from support.keras_models import CLASSES, floats, integers


def built_by_data() -> keras.Model:
    """Has no input shape until its first batch."""
    return keras.Sequential([layers.Dense(4, activation="gelu"), layers.LayerNormalization(), layers.Dense(3)])


def residual() -> keras.Model:
    """A functional graph with a skip connection, group normalization and operations that are not layers."""
    images = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 3, padding="same")(images)
    y = layers.GroupNormalization(2)(layers.SeparableConv2D(4, 3, padding="same")(keras.ops.relu(x)))
    pooled = layers.GlobalAveragePooling2D()(x + y * 0.5)
    return keras.Model(images, layers.Dense(3)(pooled))


def nested() -> keras.Model:
    """Models inside a model, one of them used twice; layers with the same name."""
    tower = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="same"), layers.BatchNormalization()])
    inner = keras.Input((3,))
    head = keras.Model(inner, layers.Dense(2, name="same")(layers.Dropout(0.2)(inner)))
    a, b = keras.Input((4,)), keras.Input((4,))
    return keras.Model([a, b], layers.Dense(1)(layers.Concatenate()([head(tower(a)), head(tower(b))])))


def attention() -> keras.Model:
    """A transformer block over tokens, with positions and a causal mask."""
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(tokens) + layers.Embedding(6, 8)(keras.ops.arange(6))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, activation="relu")(x)))
    return keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def stacked_recurrence() -> keras.Model:
    """Bidirectional and stacked recurrence, with masked steps and a layer for each step."""
    steps = keras.Input((3, 3))
    both_ways = layers.Bidirectional(layers.SimpleRNN(3, return_sequences=True, recurrent_dropout=0.1))
    x = layers.TimeDistributed(layers.Dense(4))(both_ways(layers.Masking()(steps)))
    return keras.Model(steps, layers.Dense(1)(layers.GRU(3)(x)))


def normalized() -> keras.Model:
    """Weights of layers that are adapted before training or updated by it, and noise."""
    scale = layers.Normalization()
    scale.adapt(np.arange(20, dtype=np.float32).reshape(4, 5))
    hidden = [layers.Dense(4), layers.PReLU(), layers.BatchNormalization(), layers.AlphaDropout(0.1)]
    return keras.Sequential([keras.Input((5,)), scale, layers.GaussianNoise(0.1), *hidden, layers.Dense(1)])


def augmented() -> keras.Model:
    """Random preprocessing of images."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(0.5),
            layers.RandomFlip(),
            layers.RandomTranslation(0.1, 0.1),
            layers.Conv2DTranspose(2, 3),
            layers.SpatialDropout2D(0.2),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


@keras.saving.register_keras_serializable()
class TwoTowers(keras.Model):
    """Subclassed: layers in lists and dictionaries, dictionaries in and out, a metric of its own, a branch by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {name: layers.Embedding(20, 4) for name in ("user", "item")}
        self.towers = [layers.Dense(4, activation="tanh") for _ in range(2)]
        self.norm = layers.BatchNormalization()
        self.auxiliary = layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
        """See keras.layers.Layer."""
        user, item = (
            tower(self.tables[name](inputs[name])) for tower, name in zip(self.towers, ("user", "item"), strict=True)
        )
        self.seen.update_state(user)
        score = keras.ops.sum(self.norm(user, training=training) * item, axis=-1, keepdims=True)
        if training:
            self.add_loss(keras.ops.mean(keras.ops.square(self.auxiliary(user))))
        return {"score": score, "label": keras.ops.concatenate([user, item], axis=-1)[:, :3]}


@keras.saving.register_keras_serializable()
class Scaled(layers.Layer):
    """A custom layer with weights of its own: one scalar, one that counts calls, one that moves."""

    def build(self, shape: Any) -> None:
        """See keras.layers.Layer."""
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")
        self.inner = layers.Dense(2)
        self.inner.build(shape)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """See keras.layers.Layer."""
        if training:
            self.calls.assign(self.calls + 1)
            self.mean.assign(self.mean * 0.9 + keras.ops.mean(x, axis=0) * 0.1)
        return self.inner(x - self.mean) * self.factor


def custom_layers() -> keras.Model:
    """The same custom layer twice under the same name."""
    return keras.Sequential([Scaled(name="scaled"), keras.Sequential([Scaled(name="scaled")]), layers.Dense(1)])


@keras.saving.register_keras_serializable()
class OwnLoss(keras.Model):
    """Computes its loss itself, as autoencoders do, with its own random numbers and a weight that is not in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)
        self.encode, self.decode = layers.Dense(3), layers.Dense(5)
        self.spread = self.add_weight(shape=(3,), initializer="ones", name="spread")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """See keras.layers.Layer."""
        return self.decode(self.encode(x) + self.spread * keras.random.normal((4, 3), seed=self.seeds))

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> tf.Tensor:
        """See keras.Model."""
        return keras.ops.mean(keras.ops.square(y_pred - x)) + 0.01 * keras.ops.sum(keras.ops.square(self.spread))


def tied() -> keras.Model:
    """One embedding table at both ends."""
    tokens = keras.Input((6,), dtype="int32")
    table = layers.ReversibleEmbedding(20, 4, embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0))
    return keras.Model(tokens, table(layers.Dense(4)(table(tokens)), reverse=True))


def mobile_net() -> keras.Model:
    """The first blocks of the smallest of `keras.applications`, with random weights and a head like its own.

    Made of its own blocks: all thirteen of them would take four times as long, in each model.
    """
    inputs = keras.Input((32, 32, 3))
    x = mobilenet._conv_block(inputs, 32, alpha=0.25, strides=(2, 2))
    x = mobilenet._depthwise_conv_block(x, 64, alpha=0.25, depth_multiplier=1, block_id=1)
    x = mobilenet._depthwise_conv_block(x, 128, alpha=0.25, depth_multiplier=1, strides=(2, 2), block_id=2)
    pooled = layers.Dropout(1e-3)(layers.GlobalAveragePooling2D(keepdims=True)(x))
    return keras.Model(inputs, layers.Reshape((3,))(layers.Conv2D(3, 1, padding="same")(pooled)))


STYLES: dict[str, tuple[Callable[[], keras.Model], Any, Any, Any]] = {
    "built_by_data": (built_by_data, floats(5), integers(3), CLASSES),
    "residual": (residual, floats(8, 8, 2), integers(3), CLASSES),
    "nested": (nested, (floats(4), floats(4)), floats(1), "mse"),
    "attention": (attention, integers(20, 6), integers(3), CLASSES),
    "stacked_recurrence": (stacked_recurrence, floats(3, 3), floats(1), "mse"),
    "normalized": (normalized, floats(5), floats(1), "mse"),
    "augmented": (augmented, floats(8, 8, 1), integers(3), CLASSES),
    "two_towers": (
        TwoTowers,
        {"user": integers(20), "item": integers(20)},
        {"score": floats(1), "label": integers(3)},
        {"score": "mse", "label": CLASSES},
    ),
    "custom_layers": (custom_layers, floats(5), floats(1), "mse"),
    "own_loss": (OwnLoss, floats(5), floats(5), None),
    "tied": (tied, integers(20, 6), integers(20, 6), CLASSES),
    "mobile_net": (mobile_net, floats(32, 32, 3), integers(3), CLASSES),
}
