"""One small classifier on images of digits, whatever the format of the files is that they are read from."""

from __future__ import annotations

from pathlib import Path

import keras
import tensorflow as tf
from formats import FORMATS, examples
from keras import layers

import psfleet

DATA = Path(__file__).parent / "data"
NUM_CLASSES = 10


def build(format: str = "csv", folder: str | None = None) -> psfleet.KerasProgram:
    """Returns the training program.

    Args:
        format: Of the files: csv, records, tfrecord or text.
        folder: Has the files; None: `data/FORMAT`.
    """
    if format not in FORMATS:
        raise ValueError(f"options.format is {format!r}, expected one of {', '.join(FORMATS)}")
    files = DATA / format if folder is None else Path(folder)

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        return examples(files, format, "train", shard_index, num_shards)

    return psfleet.KerasProgram(
        model=classifier,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        train=train,
        evaluate=lambda: examples(files, format, "test"),
    )


def classifier() -> keras.Model:
    """A model from pixels [batch, pixels] of any range to logits [batch, 10]; built on the first batch."""
    hidden = layers.Dense(32, activation="relu")
    return keras.Sequential([layers.LayerNormalization(), hidden, layers.Dense(NUM_CLASSES)])
