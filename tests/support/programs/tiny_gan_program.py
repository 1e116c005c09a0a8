"""Two linear networks that train against each other, whose gradients are easy to write by hand.

The variables use what TensorFlow 1 has for them: `reuse`, `AUTO_REUSE`, and initializers and regularizers of a scope.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet

NOISE, FEATURES = 3, 20
NUM_EXAMPLES = 96
MOMENTUM, PENALTY = 0.75, 0.02
ALTERNATE = ["discriminator", "discriminator", "generator"]
SHAPES = {
    "generator/kernel": (NOISE, FEATURES),
    "generator/bias": (FEATURES,),
    "discriminator/kernel": (FEATURES,),
    "discriminator/bias": (),
}
"""In the order of their creation, which is not that of the losses."""


def build() -> psfleet.GraphProgram:
    """The program; it evaluates on its own training data."""
    return psfleet.GraphProgram(
        losses={
            "discriminator": (discriminator_loss, "discriminator/"),
            "generator": (generator_loss, "generator"),
        },
        train=train,
        evaluate=lambda: train(0, 1),
    )


def initial_weights() -> dict[str, np.ndarray]:
    """Every trainable variable at step 0, float32."""
    random = np.random.default_rng(21)
    return {name: (random.normal(size=shape) / 2).astype(np.float32) for name, shape in SHAPES.items()}


def initial_state() -> dict[str, np.ndarray]:
    """The moving average of what the generator makes, and the number of steps."""
    return {"generator/mean": np.zeros(FEATURES, np.float32), "steps": np.zeros([], np.int64)}


def data() -> tuple[np.ndarray, np.ndarray]:
    """Real examples `[NUM_EXAMPLES, FEATURES]`, and noise `[NUM_EXAMPLES, NOISE]`, float32."""
    random = np.random.default_rng(22)
    real = 1.0 + random.normal(size=(NUM_EXAMPLES, FEATURES))
    return real.astype(np.float32), random.normal(size=(NUM_EXAMPLES, NOISE)).astype(np.float32)


def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
    """Every `num_shards`-th example."""
    return tf.data.Dataset.from_tensor_slices(data()).shard(num_shards, shard_index)


def generator(noise: tf.Tensor) -> tf.Tensor:
    """`[batch, FEATURES]` of `[batch, NOISE]`; moves the average of what it makes."""

    def initial(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        del dtype, partition_info
        return initial_weights()["generator/bias" if list(shape) == [FEATURES] else "generator/kernel"]

    def squares(value: tf.Tensor) -> tf.Tensor:
        return PENALTY * tf.reduce_sum(value * value)

    with v1.variable_scope("generator", reuse=v1.AUTO_REUSE, initializer=initial, regularizer=squares):
        kernel, bias = v1.get_variable("kernel", [NOISE, FEATURES]), v1.get_variable("bias", [FEATURES])
        mean = v1.get_variable("mean", initializer=tf.zeros([FEATURES]), trainable=False, regularizer=None)
    before = mean.read_value()
    made = tf.matmul(noise, kernel) + bias - before
    with tf.control_dependencies([before]):
        moved = mean.assign(MOMENTUM * before + (1 - MOMENTUM) * tf.reduce_mean(made, 0))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moved.op)
    return made


def discriminator(x: tf.Tensor, reuse: bool) -> tf.Tensor:
    """Logits `[batch]` of `[batch, FEATURES]`: above 0 for real ones."""
    weights = initial_weights()
    with v1.variable_scope("discriminator", reuse=reuse):
        kernel = v1.get_variable("kernel", initializer=weights["discriminator/kernel"])
        bias = v1.get_variable("bias", initializer=weights["discriminator/bias"])
    return tf.linalg.matvec(x, kernel) + bias


def count() -> None:
    """Counts a step of either loss."""
    with v1.variable_scope("", reuse=v1.AUTO_REUSE):
        steps = v1.get_variable("steps", [], tf.int64, v1.zeros_initializer(), trainable=False)
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, steps.assign_add(1).op)


def discriminator_loss(batch: Any) -> tf.Tensor:
    """That real examples are taken for generated ones, and the other way around."""
    real, noise = batch
    count()
    on_real, on_made = discriminator(real, reuse=False), discriminator(generator(noise), reuse=True)
    return tf.reduce_mean(tf.nn.softplus(-on_real) + tf.nn.softplus(on_made))


def generator_loss(batch: Any) -> tf.Tensor:
    """That made examples are not taken for real ones, and the penalty on the generator's weights."""
    count()
    on_made = discriminator(generator(batch[1]), reuse=True)
    penalty = tf.add_n(v1.get_collection(v1.GraphKeys.REGULARIZATION_LOSSES, "generator/"))
    return tf.reduce_mean(tf.nn.softplus(-on_made)) + penalty
