"""LeNet-5 on handwritten digits: the 1,797 in `data/`, or MNIST."""

from __future__ import annotations

import keras
import tensorflow as tf
from digits import Images, read_digits, read_mnist
from keras import layers

import psfleet


def build(data_dir: str | None = None) -> psfleet.KerasProgram:
    """Returns the training program.

    Args:
        data_dir: A folder with MNIST's four idx files, gzipped or not; None: the digits in `data/`.
    """
    training, test = read_digits() if data_dir is None else read_mnist(data_dir)
    return psfleet.KerasProgram(
        model=lenet,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        train=lambda shard_index, num_shards: dataset(training.shard(shard_index, num_shards)),
        evaluate=lambda: dataset(test),
    )


def lenet() -> keras.Model:
    """A model from pixels [batch, 28, 28, 1] in [0, 1] to logits [batch, 10].

    LeCun et al. 1998, section II.B (two 5x5 convolutions, each with a subsampling, then dense layers), with ReLU, max
    pooling, dropout and wider layers.
    """
    return keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            layers.Conv2D(20, 5, activation="relu", kernel_initializer="he_normal"),
            layers.MaxPooling2D(),
            layers.Conv2D(50, 5, activation="relu", kernel_initializer="he_normal"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(500, activation="relu", kernel_initializer="he_normal"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def dataset(images: Images) -> tf.data.Dataset:
    """Unbatched examples: pixels [28, 28, 1] float32 in [0, 1], label [] int32."""
    examples = tf.data.Dataset.from_tensor_slices((images.pixels, images.labels))
    return examples.map(lambda pixels, label: (tf.cast(pixels, tf.float32)[..., tf.newaxis] / 255.0, label))
