"""A step whose loss, gradient or state is not finite fails and names the tensor; a step that is finite is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import Stepper, sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.frontends import FrontEnd, finite, front_end

v1 = tf.compat.v1
GOOD = np.ones((4, 2), np.float32)
BAD = GOOD * [[1], [0], [1], [1]]
"""Its second row is zero: where the root of a square has no derivative."""


def root(prediction: tf.Tensor) -> tf.Tensor:
    """The absolute value, whose gradient by TensorFlow is NaN at 0."""
    return tf.sqrt(tf.square(prediction))


def root_of_a_sum(batch: tf.Tensor) -> tf.Tensor:
    bias = v1.get_variable("net/bias", [2], initializer=v1.ones_initializer())
    weights = v1.get_variable("net/w", [2], initializer=v1.ones_initializer())
    return tf.reduce_mean(root(tf.linalg.matvec(batch, weights))) + tf.reduce_sum(bias)


def moving_state(batch: tf.Tensor) -> tf.Tensor:
    """The inverse of the smallest row is infinite for BAD; the loss does not depend on it."""
    mean = v1.get_variable("mean", [3], tf.float64, trainable=False, initializer=v1.zeros_initializer())
    count = v1.get_variable("count", [], tf.int64, trainable=False, initializer=v1.zeros_initializer())
    inverse = tf.cast(1 / tf.reduce_min(tf.reduce_sum(batch, 1)), tf.float64)
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, mean[1].assign(inverse))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, count.assign_add(1))
    return tf.reduce_sum(v1.get_variable("w", [2]))


def logarithm(batch: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.log(tf.reduce_sum(batch, 1))) * v1.get_variable("w", [])


def graph_front(loss: Callable[[Any], Any]) -> FrontEnd:
    def train(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(GOOD)

    return front_end(GraphProgram(loss=loss, train=train), sample_job(), 1, 0)


def keras_front() -> FrontEnd:
    def model() -> keras.Model:
        return keras.Sequential([keras.Input((2,)), layers.Dense(1, use_bias=False, name="out")], name="net")

    def train(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((GOOD, GOOD[:, :1]))

    program = KerasProgram(model=model, loss=lambda y, prediction: root(prediction), train=train)
    return front_end(program, sample_job(), 1, 0)


def failure(front: FrontEnd, batch: list[np.ndarray]) -> str | None:
    """How a step of the batch fails; None if it does not."""
    stepper = Stepper.of(front)
    with stepper.session.graph.as_default():
        graph = finite.checked(stepper.graph, stepper.layout)
    try:
        stepper.run([graph.loss, *graph.gradients, *graph.new_state], batch)
    except tf.errors.InvalidArgumentError as error:
        return finite.failure(error.message)
    return None


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (root_of_a_sum, "the gradient of net/w is NaN or infinite, expected finite numbers"),
        (moving_state, "state mean is NaN or infinite, expected finite numbers"),
        (logarithm, "the loss is infinite, expected a finite number"),
        (lambda batch: logarithm(batch - 1), "the loss is NaN, expected a finite number"),
    ],
    ids=["gradient", "state", "infinite loss", "NaN loss"],
)
def test_a_graph_program_fails_with_the_tensor_that_is_not_finite(loss: Callable[[Any], Any], expected: str) -> None:
    front = graph_front(loss)
    assert failure(front, [GOOD + 1]) is None
    assert failure(front, [BAD]) == expected


def test_a_keras_program_fails_with_the_tensor_that_is_not_finite() -> None:
    front = keras_front()
    assert failure(front, [GOOD, GOOD[:, :1]]) is None
    expected = "the gradient of net/out/kernel is NaN or infinite, expected finite numbers"
    assert failure(front, [BAD.astype(np.float32), GOOD[:, :1]]) == expected


def test_another_error_of_the_program_is_not_taken_for_this_one() -> None:
    assert finite.failure("assertion failed: [psfleet: the loss]") is None
    assert finite.failure("my own check : Tensor had NaN values") is None


@pytest.mark.parametrize("trainable", [True, False])
def test_an_initial_value_that_is_not_finite_is_refused_by_name(trainable: bool) -> None:
    def loss(batch: tf.Tensor) -> tf.Tensor:
        first = v1.get_variable("first", [2], trainable=trainable, initializer=v1.constant_initializer([1, np.inf]))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, first.assign(first) if not trainable else tf.no_op())
        return tf.reduce_sum(first) + v1.get_variable("w", [])

    with pytest.raises(ProgramError, match="the initial value of first is NaN or infinite, expected finite numbers"):
        graph_front(loss).initial_values()
