"""A generative adversarial network on 8x8 digits: two losses, each with variables and an optimizer of its own."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet

SIDE, LEVELS = 8, 16
TEST_EVERY = 5
"""Digits 0, 5, 10, … are not trained on."""
NOISE = 16
ROWS, COLUMNS = 4, 8
GAP, ZOOM = 2, 4
"""The picture in the report has a gap of so many pixels around each digit, and is so many times as large."""


def build(digits: str, units: int = 128) -> psfleet.GraphProgram:
    """Returns the training program.

    Args:
        digits: File with a digit in each line: 64 values in 0..16, row by row, and the label, which is not used.
        units: Width of the hidden layers of both networks.
    """
    with gzip.open(Path(digits), "rt") as file:
        pixels = np.loadtxt(file, delimiter=",", dtype=np.float32)[:, :-1] / LEVELS
    is_test = np.arange(len(pixels)) % TEST_EVERY == 0

    def generator(noise: tf.Tensor) -> tf.Tensor:
        """Digits [n, 64] in [0, 1] of noise [n, NOISE]."""
        with v1.variable_scope("generator", reuse=v1.AUTO_REUSE, initializer=v1.glorot_uniform_initializer()):
            hidden = tf.nn.relu(dense("first", noise, units))
            hidden = tf.nn.relu(dense("second", hidden, units))
            return tf.sigmoid(dense("last", hidden, SIDE * SIDE))

    def discriminator(x: tf.Tensor) -> tf.Tensor:
        """Logits [n] of digits [n, 64]: above 0 for real ones."""
        with v1.variable_scope("discriminator", reuse=v1.AUTO_REUSE, initializer=v1.glorot_uniform_initializer()):
            hidden = tf.nn.leaky_relu(dense("first", x, units))
            hidden = tf.nn.leaky_relu(dense("second", hidden, units))
            return tf.squeeze(dense("last", hidden, 1), -1)

    def discriminator_loss(real: tf.Tensor) -> tf.Tensor:
        made = generator(tf.random.normal([tf.shape(real)[0], NOISE]))
        return tf.reduce_mean(entropy(discriminator(real), 0.9) + entropy(discriminator(made), 0.0))

    def generator_loss(real: tf.Tensor) -> tf.Tensor:
        fixed = np.random.default_rng(1).normal(size=(ROWS * COLUMNS, NOISE)).astype(np.float32)
        v1.summary.image("generated", sheet(generator(tf.constant(fixed))), max_outputs=1)
        return tf.reduce_mean(entropy(discriminator(generator(tf.random.normal([tf.shape(real)[0], NOISE]))), 1.0))

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(pixels[~is_test]).shard(num_shards, shard_index)

    return psfleet.GraphProgram(
        losses={
            "discriminator": (discriminator_loss, "discriminator/"),
            "generator": (generator_loss, "generator/"),
        },
        train=train,
        evaluate=lambda: tf.data.Dataset.from_tensor_slices(pixels[is_test]),
    )


def dense(name: str, x: tf.Tensor, units: int) -> tf.Tensor:
    """A layer [n, units] with variables in the scope `name`."""
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], units])
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    return tf.matmul(x, kernel) + bias


def entropy(logits: tf.Tensor, label: float) -> tf.Tensor:
    """Cross-entropy [n] of logits [n] with one label for all."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.fill(tf.shape(logits), label), logits=logits)


def sheet(digits: tf.Tensor) -> tf.Tensor:
    """One picture [1, height, width, 1] of ROWS * COLUMNS digits."""
    gap = [GAP // 2, GAP // 2]
    grid = tf.pad(tf.reshape(digits, [ROWS, COLUMNS, SIDE, SIDE]), [[0, 0], [0, 0], gap, gap], constant_values=0.3)
    picture = tf.reshape(tf.transpose(grid, [0, 2, 1, 3]), [ROWS * (SIDE + GAP), COLUMNS * (SIDE + GAP)])
    return tf.repeat(tf.repeat(picture, ZOOM, 0), ZOOM, 1)[tf.newaxis, :, :, tf.newaxis]
