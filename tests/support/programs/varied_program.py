"""A program that touches much of TensorFlow: embedding, LSTM, batch normalisation, dropout, and a tf.data pipeline."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

import psfleet

NUM_WORDS, LENGTH = 50, 6


def build() -> psfleet.KerasProgram:
    """A program that learns whether the sum of a row of words is even."""
    return psfleet.KerasProgram(
        model=model,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")],
        train=lambda shard_index, num_shards: rows(2000).shard(num_shards, shard_index),
        evaluate=lambda: rows(200),
    )


def model() -> keras.Model:
    """Words [batch, 6] int64 to logits [batch, 1]."""
    return keras.Sequential(
        [
            keras.Input([LENGTH], dtype="int64"),
            layers.Embedding(NUM_WORDS, 8),
            layers.LSTM(12),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Dense(1),
        ]
    )


def rows(count: int) -> tf.data.Dataset:
    """Words [6] int64 and their label [1] float32."""

    def row(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        words = tf.random.stateless_uniform([LENGTH], [7, index], maxval=NUM_WORDS, dtype=tf.int64)
        return words, tf.cast([tf.reduce_sum(words) % 2], tf.float32)

    return tf.data.Dataset.range(count).map(row, num_parallel_calls=tf.data.AUTOTUNE)
