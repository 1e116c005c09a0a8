"""Variables of a type that a checkpoint cannot hold are refused by name before the run starts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.frontends import FrontEnd, front_end

v1 = tf.compat.v1
X = np.ones((4, 2), np.float32)


def train(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, X))


class Scaled(layers.Layer):
    """Has a variable of a type, which the forward pass changes or only reads."""

    def __init__(self, dtype: str, is_changed: bool) -> None:
        super().__init__(name="scaled")
        self.scale = self.add_weight(shape=(), dtype=dtype, initializer="ones", trainable=False, name="scale")
        self.is_changed = is_changed

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.is_changed:
            self.scale.assign(self.scale / keras.ops.cast(2, self.scale.dtype))
        return x * tf.cast(self.scale.value, tf.float32)


def keras_front(dtype: str, is_changed: bool) -> FrontEnd:
    def model() -> keras.Model:
        return keras.Sequential([keras.Input((2,)), layers.Dense(2), Scaled(dtype, is_changed)], name="net")

    return front_end(KerasProgram(model=model, loss="mse", train=train), sample_job(), 1, 0)


def graph_front(dtype: str, is_changed: bool) -> FrontEnd:
    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        scale = v1.get_variable("scale", [], dtype, trainable=False, initializer=v1.ones_initializer())
        if is_changed:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, scale.assign(scale / 2))
        return tf.reduce_sum(v1.get_variable("w", [2]) * batch[0]) * tf.cast(scale, tf.float32)

    return front_end(GraphProgram(loss=loss, train=train), sample_job(), 1, 0)


@pytest.mark.parametrize("is_changed", [True, False], ids=["changed", "constant"])
@pytest.mark.parametrize("build", [keras_front, graph_front])
def test_a_variable_that_no_checkpoint_can_hold_is_refused_by_name(build: object, is_changed: bool) -> None:
    assert callable(build)
    assert build("float16", is_changed)
    expected = "scale is bfloat16, which no checkpoint can hold; expected one of float64, int64"
    with pytest.raises(ProgramError, match=expected) as caught:
        build("bfloat16", is_changed)
    assert "\n" not in str(caught.value)
