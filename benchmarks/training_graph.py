"""The parts of a TF1 training graph that `compute` and `stock` share: inputs that are fed, loss and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.mlp.program import NUM_EXAMPLES, NUM_PIXELS, mlp_loss, synthetic
from benchmarks.simulated.program import synthetic as waiting_examples
from benchmarks.simulated.program import waiting_loss
from benchmarks.workload import LEARNING_RATE, Workload

Feed = dict[Any, Any]


def fed_loss(workload: Workload, shard_index: int) -> tuple[tf.Tensor, Callable[[int], Feed]]:
    """Builds the loss in the default graph.

    Returns:
        The loss, a float32 scalar, and a function from a step to the feed_dict of its batch: slices of memory.
    """
    size = workload.batch_size
    if workload.shapes:
        examples = tf.compat.v1.placeholder(tf.float32, [size])
        batch = waiting_examples(shard_index)[:size]
        return waiting_loss(examples, workload.shapes, workload.wait_ms), lambda step: {examples: batch}
    images = tf.compat.v1.placeholder(tf.float32, [size, NUM_PIXELS])
    labels = tf.compat.v1.placeholder(tf.int32, [size])
    all_images, all_labels = synthetic(shard_index)
    num_batches = NUM_EXAMPLES // size

    def feed(step: int) -> Feed:
        start = step % num_batches * size
        return {images: all_images[start : start + size], labels: all_labels[start : start + size]}

    return mlp_loss(images, labels, hidden=workload.hidden), feed


def new_optimizer(workload: Workload) -> tf.compat.v1.train.Optimizer:
    """The workload's optimizer with the rate that all contenders use."""
    if workload.optimizer == "adam":
        return tf.compat.v1.train.AdamOptimizer(LEARNING_RATE)
    return tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)
