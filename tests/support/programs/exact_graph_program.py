"""A perceptron with one hidden layer as a TensorFlow 1 graph function, whose gradient is easy to write by hand.

It subtracts a moving average from its inputs: the average of the steps before, so that the loss depends on the state.
In jobs with two parts its last layer is in part 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet

FEATURES, HIDDEN, CLASSES = 12, 160, 4
NUM_EXAMPLES = 230
MOMENTUM = 0.9
SHAPES = {
    "hidden/weights": (FEATURES, HIDDEN),
    "hidden/bias": (HIDDEN,),
    "out/weights": (HIDDEN, CLASSES),
    "out/bias": (CLASSES,),
}
"""2724 parameters: with buckets of 4 KiB they are cut into 3 on one ps, 2 on each of two, 1 on each of three."""


def build() -> psfleet.GraphProgram:
    """The program."""
    return psfleet.GraphProgram(loss=loss, train=train)


def initial_weights() -> dict[str, np.ndarray]:
    """Every trainable variable at step 0, float32."""
    random = np.random.default_rng(11)
    return {name: (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32) for name, shape in SHAPES.items()}


def initial_state() -> dict[str, np.ndarray]:
    """The moving average at step 0, float32."""
    return {"mean": np.zeros(FEATURES, np.float32)}


def data() -> tuple[np.ndarray, np.ndarray]:
    """x `[NUM_EXAMPLES, FEATURES]` float32, and the class of each example, `[NUM_EXAMPLES]` int32."""
    random = np.random.default_rng(12)
    x = (0.5 + random.normal(size=(NUM_EXAMPLES, FEATURES))).astype(np.float32)
    return x, np.argmax(x @ random.normal(size=(FEATURES, CLASSES)), axis=1).astype(np.int32)


def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    """Every `num_shards`-th example."""
    return tf.data.Dataset.from_tensor_slices(data()).shard(num_shards, shard_index)


def loss(batch: Any) -> Any:
    """Mean cross-entropy, a float32 scalar, of x `[batch, FEATURES]` and the class `[batch]`."""
    x, label = batch
    values = {name: v1.get_variable(name, initializer=value) for name, value in initial_weights().items()}
    mean = v1.get_variable("mean", initializer=initial_state()["mean"], trainable=False)
    before = mean.read_value()
    with tf.control_dependencies([before]):
        moved = mean.assign(MOMENTUM * before + (1 - MOMENTUM) * tf.reduce_mean(x, axis=0))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moved.op)
    hidden = tf.tanh(tf.matmul(x - before, values["hidden/weights"]) + values["hidden/bias"])
    with psfleet.part(1):
        logits = tf.matmul(hidden, values["out/weights"]) + values["out/bias"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
