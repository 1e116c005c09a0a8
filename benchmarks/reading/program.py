"""A model that waits in each step, on data that take a while to read; neither uses the processor meanwhile."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

import psfleet

FEATURES = 4
EXAMPLES = 96
"""Of each shard."""


def build(read_ms: float, step_ms: float, threads: int) -> psfleet.GraphProgram:
    """The program.

    Args:
        read_ms: Milliseconds for reading one example.
        step_ms: Milliseconds that the model computes on a batch.
        threads: Number of examples that are read at a time.
    """

    def read(number: tf.Tensor) -> tf.data.Dataset:
        x = tf.random.stateless_normal([FEATURES], tf.stack([number, 1]))
        return _slow(tf.data.Dataset.from_tensors((x, tf.reduce_sum(x, keepdims=True))), read_ms)

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(EXAMPLES * num_shards).shard(num_shards, shard_index)
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        examples = numbers.interleave(read, cycle_length=threads, num_parallel_calls=threads)
        return examples.apply(tf.data.experimental.assert_cardinality(EXAMPLES)).with_options(options)

    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        x, y = batch
        waited = tf.numpy_function(lambda given: _wait(given, step_ms), [x], tf.float32)
        waited.set_shape(x.shape)
        weights = tf.compat.v1.get_variable("w", [FEATURES, 1], initializer=tf.compat.v1.zeros_initializer())
        return tf.reduce_mean(tf.square(tf.matmul(waited, weights) - y))

    return psfleet.GraphProgram(loss=loss, train=train)


def _slow(examples: tf.data.Dataset, milliseconds: float) -> tf.data.Dataset:
    """The data set, with a pause before each element."""
    specs = tf.nest.flatten(examples.element_spec)
    paused = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(examples),
        sleep_microseconds=int(milliseconds * 1000),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(paused, examples.element_spec)


def _wait(given: np.ndarray, milliseconds: float) -> np.ndarray:
    time.sleep(milliseconds / 1000)
    return given
