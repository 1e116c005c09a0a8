"""What a program sets for all its models, how a model is built, and metrics that are arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model
from worker_service import frontends
from worker_service.frontends import front_end

X, Y = np.ones((9, 5), np.float32), np.eye(3, dtype=np.float32)[np.arange(9) % 3]


def data(*_: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def dense() -> keras.Model:
    return keras.Sequential([keras.Input([5]), layers.Dense(3, "softmax")])


def program(model: Callable[[], keras.Model] = dense, **fields: object) -> KerasProgram:
    return KerasProgram(model=model, loss="categorical_crossentropy", train=data, **fields)  # type: ignore[arg-type]


class Counting(keras.Model):
    """Is built by its data, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.normalization = layers.Dense(3), layers.BatchNormalization()
        self.seeds = keras.random.SeedGenerator(3)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: tf.Tensor, training: bool = True) -> tf.Tensor:
        self.calls.assign_add(1.0)
        noise = keras.random.normal([5], seed=self.seeds)
        return self.normalization(self.dense(x + noise), training=training)


def test_the_dtype_policy_of_a_program_is_that_of_its_models() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        assert built_model(program(), sample_job()).layers[0].compute_dtype == "bfloat16"
        assert built_model(program(), sample_job()).layers[0].compute_dtype == "bfloat16", "again"
    finally:
        keras.config.set_dtype_policy("float32")


def test_building_a_model_changes_no_state() -> None:
    built = built_model(program(Counting), sample_job())
    values = {each.path.rpartition("/")[2]: each.numpy() for each in built.non_trainable_variables}
    assert values["calls"] == 0
    assert not values["moving_mean"].any()
    assert values["seed_generator_state"].tolist() == [3, 0]


def test_a_dtype_policy_that_a_model_sets_is_not_that_of_the_next_one() -> None:
    def model(policy: str) -> keras.Model:
        if policy:
            keras.config.set_dtype_policy(policy)
        return dense()

    try:
        made = [built_model(program(partial(model, policy)), sample_job()) for policy in ("", "mixed_bfloat16", "")]
        assert [each.layers[0].compute_dtype for each in made] == ["float32", "bfloat16", "float32"]
    finally:
        keras.config.set_dtype_policy("float32")


class Pretrained(layers.Layer):
    """Sets its weights when it is built, from an array that it makes then."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.dense = layers.Dense(3)
        self.dense.build(shape)
        self.dense.set_weights([tf.range(15.0).numpy().reshape(5, 3), np.ones(3)])
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.dense(x)


@pytest.mark.parametrize(
    "before", [[], [layers.Normalization(mean=0.5, variance=2.0)]], ids=["alone", "after constants"]
)
def test_values_that_a_layer_sets_when_it_is_built_stay(before: list[layers.Layer]) -> None:
    built = built_model(program(lambda: keras.Sequential([*before, Pretrained()])), sample_job())
    kernel = built.trainable_variables[0].numpy()
    np.testing.assert_array_equal(kernel, np.arange(15.0).reshape(5, 3))
    assert len(built.trainable_variables) == 2


class Rounded(keras.Model):
    """Assigns variables that bfloat16 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        self.large = self.add_weight(initializer=keras.initializers.Constant(70001.0), trainable=False, name="large")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.large.assign(self.large + 1.0)
        return self.dense(x)


def test_building_a_model_of_less_precision_rounds_no_value() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        built = built_model(program(Rounded), sample_job())
    finally:
        keras.config.set_dtype_policy("float32")
    assert built.large._value.numpy() == 70001.0


def test_a_dtype_policy_of_a_model_that_fails_is_not_that_of_the_next_one() -> None:
    def fails() -> keras.Model:
        keras.config.set_dtype_policy("mixed_bfloat16")
        raise ValueError("no such model")

    try:
        with pytest.raises(ProgramError, match="no such model"):
            built_model(program(fails), sample_job())
        assert built_model(program(), sample_job()).layers[0].compute_dtype == "float32"
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_model_that_draws_in_a_vectorized_map_is_built() -> None:
    class Mapped(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.seeds = layers.Dense(3), keras.random.SeedGenerator(3)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            noisy = keras.ops.vectorized_map(lambda row: row + keras.random.normal([5], seed=self.seeds), x)
            return self.dense(noisy)

    built = built_model(program(Mapped), sample_job())
    assert [tuple(each.shape) for each in built.trainable_variables] == [(5, 3), (3,)]
    assert built.seeds.state.numpy().tolist() == [3, 0]


def test_a_model_of_a_distribution_strategy_is_refused() -> None:
    def model() -> keras.Model:
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            return dense()

    with pytest.raises(ProgramError, match=r"in the scope of a tf\.distribute\.Strategy, expected none"):
        front_end(program(model), sample_job(), 1, 0)


def test_a_program_without_eager_execution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontends.tf, "executing_eagerly", lambda: False)
    with pytest.raises(ProgramError, match=r"turns eager execution off, expected no disable_v2_behavior\(\)"):
        front_end(program(), sample_job(), 1, 0)


def test_a_metric_that_is_an_array_is_left_out_which_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    own = program(metrics=["accuracy", keras.metrics.F1Score()], evaluate=data)
    front = front_end(own, sample_job(), 1, 0)
    for _ in range(2):
        assert front.evaluate(front.initial_values(), lambda _: []).keys() == {"accuracy", "loss"}
    messages = [record.getMessage() for record in caplog.records]
    assert [text for text in messages if "f1_score" in text] == [
        "not recorded, because they are no numbers but arrays: f1_score; expected metrics with one value, for example "
        "average='macro'"
    ]
