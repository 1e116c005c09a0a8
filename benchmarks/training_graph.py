"""The parts of a TF1 training graph that contenders share: inputs that are fed, loss, optimizer and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.digits import data, lenet
from benchmarks.mlp.program import NUM_EXAMPLES, NUM_PIXELS, mlp_loss, synthetic
from benchmarks.simulated.program import synthetic as waiting_examples
from benchmarks.simulated.program import waiting_loss
from benchmarks.workload import LEARNING_RATE, Workload

Feed = dict[Any, Any]
Accuracy = Callable[[Callable[[tf.Tensor, Feed], Any]], float]
"""From `Session.run`, which is called with a tensor and a feed_dict, to the share of the test images."""


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
    if workload.mnist:
        pixels, digits = _fed_digits(size)
        shard = data.Shard(workload, shard_index)
        loss = lenet.mean_loss(_lenet_variables(workload), pixels, digits)
        return loss, lambda step: dict(zip((pixels, digits), shard.batch(step), strict=True))
    images = tf.compat.v1.placeholder(tf.float32, [size, NUM_PIXELS])
    labels = tf.compat.v1.placeholder(tf.int32, [size])
    all_images, all_labels = synthetic(shard_index)
    num_batches = NUM_EXAMPLES // size

    def feed(step: int) -> Feed:
        start = step % num_batches * size
        return {images: all_images[start : start + size], labels: all_labels[start : start + size]}

    return mlp_loss(images, labels, hidden=workload.hidden), feed


def accuracy(workload: Workload) -> Accuracy:
    """Adds the accuracy of LeNet to the default graph, after the loss."""
    pixels, labels = _fed_digits(None)
    with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), reuse=True):
        right = lenet.num_right(_lenet_variables(workload), pixels, labels)
    batches = data.evaluation_batches(workload.mnist)

    def measure(run: Callable[[tf.Tensor, Feed], Any]) -> float:
        return data.accuracy(batches, lambda batch: int(run(right, dict(zip((pixels, labels), batch, strict=True)))))

    return measure


def _fed_digits(size: int | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Placeholders of pixels and labels."""
    return tf.compat.v1.placeholder(tf.uint8, [size, 28, 28]), tf.compat.v1.placeholder(tf.int32, [size])


def _lenet_variables(workload: Workload) -> list[tf.Variable]:
    values = zip(lenet.SHAPES, lenet.initial(workload.seed), strict=True)
    return [
        tf.compat.v1.get_variable(f"lenet_{index}", shape, initializer=tf.compat.v1.constant_initializer(value))
        for index, (shape, value) in enumerate(values)
    ]


def new_optimizer(workload: Workload) -> tf.compat.v1.train.Optimizer:
    """The workload's optimizer with the rate that all contenders use."""
    if workload.optimizer == "adam":
        # psfleet's and ParameterServerStrategy's epsilon is that of Keras, too.
        return tf.compat.v1.train.AdamOptimizer(LEARNING_RATE, epsilon=1e-7)
    return tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)
