"""Functions of TensorFlow inside of a model: its weights in them are trained, or the model is refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import Stepper, sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import FrontEnd, front_end

RANDOM = np.random.default_rng(5)
X, Y = RANDOM.normal(size=(8, 5)).astype(np.float32), np.ones((8, 1), np.float32)


def train(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


class TwoLayers(keras.Model):
    """Its first layer is called as the subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(4, name="first"), layers.Dense(1, name="last")

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return self.first(x)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.last(self.hidden(x))


class DecoratedCall(TwoLayers):
    @tf.function
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.last(self.first(x))


class DecoratedMethod(TwoLayers):
    @tf.function
    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 1e6:  # AutoGraph converts it
            return x[:, :4]
        return self.first(x)


class FunctionAttribute(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.function = tf.function(lambda x: self.first(x))

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x)


class FunctionOfALayer(TwoLayers):
    """Is built before its function is called."""

    def __init__(self) -> None:
        super().__init__()
        self.function = tf.function(self.first)

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.last.build((None, 4))

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x)


class WithConstants(TwoLayers):
    """Its function gets numbers and arrays, and returns a number, which TensorFlow makes tensors."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([], tf.float32)])
    def scaled(self, x: tf.Tensor, factor: Any = 2.0) -> tf.Tensor:
        return x * tf.ones([], factor.dtype) * factor

    @tf.function
    def sized(self, x: tf.Tensor, size: Any) -> tf.Tensor:
        assert size.shape.as_list() == []
        return x * size

    @tf.function
    def shifted(self, by: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        assert by.shape.as_list() == [4]
        return x + by

    @tf.function
    def temperature(self) -> float:
        return 2.0

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        x = self.scaled(self.scaled(self.scaled(self.first(x), 3.0)), factor=0.5)
        x = self.shifted(np.ones(4, np.float32), self.sized(x, np.float32(1.5)))
        return x * tf.cast(self.temperature(), self.temperature().dtype)


class StoppedScale(TwoLayers):
    """Its function refers to what no gradient shall reach."""

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        scale = tf.stop_gradient(tf.reduce_max(tf.abs(self.first(x))))

        @tf.custom_gradient
        def quantized(value: tf.Tensor) -> Any:
            return tf.round(value / scale) * scale, lambda gradient: gradient

        return quantized(self.first(x))


class Normalized(TwoLayers):
    """Has state, which is assigned in the function."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.BatchNormalization(name="first")

    @tf.function
    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return self.first(x, training=True)


class Rematerialized(TwoLayers):
    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return keras.remat(self.first)(x)


class Recomputed(TwoLayers):
    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return tf.recompute_grad(self.first)(x)


class TwoResults(TwoLayers):
    """The second one of which nobody uses."""

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        def pair(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            found = self.first(value)
            return tf.tanh(found), found

        return tf.recompute_grad(pair)(x)[0]


class OwnGradient(TwoLayers):
    """Computes a gradient in `call`, which TensorFlow does in graphs only."""

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        found = self.first(x)
        return found + tf.gradients(tf.reduce_sum(tf.square(found)), [found])[0]


class StraightThrough(TwoLayers):
    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def rounded(value: tf.Tensor) -> Any:
            return tf.round(value), lambda gradient: gradient

        return rounded(self.first(x))


def front_of(model: type[keras.Model]) -> FrontEnd:
    program = KerasProgram(model=model, loss="mse", train=train, evaluate=lambda: train(0, 1))
    return front_end(program, sample_job(), 1, 0)


def eager_gradients(model: type[keras.Model]) -> dict[str, np.ndarray]:
    built = built_model(KerasProgram(model=model, loss="mse", train=train), sample_job())
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(built(X[:4], training=True) - Y[:4]))
    weights = built.trainable_variables
    found = tape.gradient(loss, [each.value for each in weights])
    return {each.path: value.numpy() for each, value in zip(weights, found, strict=True)}


@pytest.mark.filterwarnings("ignore:`build.*` was called on layer .normalized.")
@pytest.mark.parametrize(
    "model",
    [
        DecoratedCall, DecoratedMethod, FunctionAttribute, FunctionOfALayer, WithConstants, Normalized, StraightThrough,
        StoppedScale,
    ],
)  # fmt: skip
def test_weights_in_a_function_have_the_gradients_of_eager_keras(model: type[keras.Model]) -> None:
    stepper = Stepper.of(front_of(model))
    found, expected = stepper.gradients([X[:4], Y[:4]]), eager_gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert np.any(gradient) or "bias" in name or "beta" in name
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)
    assert len(stepper.front.state) == (2 if model is Normalized else 0)


def test_keras_evaluates_a_model_with_a_function_by_the_given_weights() -> None:
    front = front_of(DecoratedMethod)
    values = front.initial_values()
    zero = {name: np.zeros_like(value) for name, value in values.items()}
    assert front.evaluate(zero, lambda _: [])["loss"] == pytest.approx(1.0)
    assert front.evaluate(values, lambda _: [])["loss"] != pytest.approx(1.0)


@pytest.mark.parametrize("model", [Rematerialized, Recomputed, TwoResults])
def test_a_model_whose_weights_would_get_no_gradient_is_refused_by_the_name_of_one(model: type[keras.Model]) -> None:
    front = front_of(model)
    with pytest.raises(ProgramError, match=r"/first/(kernel|bias) is used inside of a function with a gradient"):
        Stepper.of(front)


def test_a_model_that_can_be_called_in_a_graph_only_is_built_and_trained() -> None:
    found = Stepper.of(front_of(OwnGradient)).gradients([X[:4], Y[:4]])
    assert len(found) == 4
    assert all(np.any(gradient) for gradient in found.values())


def test_a_graph_program_whose_weight_would_get_no_gradient_is_refused() -> None:
    def loss(batch: Any) -> tf.Tensor:
        x, y = batch
        w = tf.compat.v1.get_variable("w", [5, 1], use_resource=True)

        @tf.custom_gradient
        def product(value: tf.Tensor) -> Any:
            return tf.matmul(value, w), lambda gradient, variables=(): (gradient, [None for _ in variables])

        return tf.reduce_mean(tf.square(product(x) - y))

    front = front_end(GraphProgram(loss=loss, train=train), sample_job(), 1, 0)
    with pytest.raises(ProgramError, match="w is used inside of a function with a gradient of its own"):
        Stepper.of(front)


@pytest.mark.parametrize("scope", ["", "m"])
def test_the_global_step_of_tensorflow_is_that_of_the_gradient(scope: str) -> None:
    def loss(batch: Any) -> tf.Tensor:
        x, y = batch
        with tf.compat.v1.variable_scope(scope):
            step = tf.compat.v1.train.get_or_create_global_step()
            error = tf.matmul(x, tf.compat.v1.get_variable("w", [5, 1])) - y
        return tf.reduce_mean(tf.square(error)) * tf.cast(step, tf.float32)

    front = front_end(GraphProgram(loss=loss, train=train), sample_job(), 1, 0)
    stepper = Stepper.of(front)
    found = [stepper.run([stepper.graph.loss], [X[:4], Y[:4]], front.initial_values(), step)[0] for step in range(3)]
    assert found[0] == 0
    assert found[2] == pytest.approx(2 * found[1])
    assert found[1] > 0


@pytest.mark.parametrize("changes", [False, True])
def test_a_global_step_of_the_programs_own_keeps_its_begin_and_what_the_program_makes_of_it(changes: bool) -> None:
    def loss(batch: Any) -> tf.Tensor:
        x, y = batch
        begin = tf.compat.v1.constant_initializer(1000)
        step = tf.compat.v1.get_variable("global_step", [], tf.int64, begin, trainable=False)
        if changes:
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, step.assign_add(10))
        error = tf.matmul(x, tf.compat.v1.get_variable("w", [5, 1])) - y
        return tf.reduce_mean(tf.square(error)) * 0.0 + tf.cast(step, tf.float32)

    front = front_end(GraphProgram(loss=loss, train=train), sample_job(), 1, 0)
    stepper = Stepper.of(front)
    found = stepper.run([stepper.graph.loss, stepper.graph.new_state], [X[:4], Y[:4]], front.initial_values(), 7)
    assert changes or found[0] == 1007
    assert [int(value) for value in found[1]] == ([1010] if changes else [])
