"""Each optimizer of the job file takes the steps of its counterpart in `keras.optimizers`, with the same defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import optimizers as ko
from pydantic import TypeAdapter
from support.rows import first_rows
from tensorflow.core.protobuf import config_pb2

from psfleet.job.optimizer import Optimizer
from psfleet.tf import optimizers

STEPS = 50
RATE = 0.05
MAX_DIFFERENCE = 1e-5
SCALES = np.array([0.0, 1e-8, 1e-7, 1e-6, 1e-4, 1e-2, 1.0, 10.0], np.float32)
"""Size of each element's gradient: none, near each epsilon, and larger."""

Build = Callable[[Any], keras.optimizers.Optimizer]
CASES: list[tuple[dict[str, Any], Build]] = [
    ({"name": "sgd"}, ko.SGD),
    ({"name": "momentum"}, lambda rate: ko.SGD(rate, momentum=0.9)),
    ({"name": "momentum", "momentum": 0.5}, lambda rate: ko.SGD(rate, momentum=0.5)),
    ({"name": "momentum", "nesterov": True}, lambda rate: ko.SGD(rate, momentum=0.9, nesterov=True)),
    ({"name": "adam"}, ko.Adam),
    ({"name": "adam", "beta1": 0.5}, lambda rate: ko.Adam(rate, beta_1=0.5)),
    ({"name": "adam", "beta2": 0.75}, lambda rate: ko.Adam(rate, beta_2=0.75)),
    ({"name": "adam", "epsilon": 0.1}, lambda rate: ko.Adam(rate, epsilon=0.1)),
    ({"name": "adamw"}, ko.AdamW),
    ({"name": "adamw", "weight_decay": 2.0}, lambda rate: ko.AdamW(rate, weight_decay=2.0)),
    (
        {"name": "adamw", "beta1": 0.5, "beta2": 0.75, "epsilon": 0.1},
        lambda rate: ko.AdamW(rate, beta_1=0.5, beta_2=0.75, epsilon=0.1),
    ),
    ({"name": "adagrad"}, ko.Adagrad),
    ({"name": "adagrad", "initial_accumulator": 2.0}, lambda rate: ko.Adagrad(rate, initial_accumulator_value=2.0)),
    ({"name": "adagrad", "initial_accumulator": 0.0}, lambda rate: ko.Adagrad(rate, initial_accumulator_value=0.0)),
    ({"name": "adagrad", "epsilon": 0.1}, lambda rate: ko.Adagrad(rate, epsilon=0.1)),
    ({"name": "rmsprop"}, ko.RMSprop),
    ({"name": "rmsprop", "decay": 0.5}, lambda rate: ko.RMSprop(rate, rho=0.5)),
    ({"name": "rmsprop", "momentum": 0.75}, lambda rate: ko.RMSprop(rate, momentum=0.75)),
    ({"name": "rmsprop", "epsilon": 0.1}, lambda rate: ko.RMSprop(rate, epsilon=0.1)),
    ({"name": "rmsprop", "centered": True}, lambda rate: ko.RMSprop(rate, centered=True)),
    (
        {"name": "rmsprop", "centered": True, "momentum": 0.5},
        lambda rate: ko.RMSprop(rate, centered=True, momentum=0.5),
    ),
    ({"name": "ftrl"}, ko.Ftrl),
    ({"name": "ftrl", "learning_rate_power": -0.75}, lambda rate: ko.Ftrl(rate, learning_rate_power=-0.75)),
    ({"name": "ftrl", "initial_accumulator": 0.5}, lambda rate: ko.Ftrl(rate, initial_accumulator_value=0.5)),
    ({"name": "ftrl", "l1": 0.3}, lambda rate: ko.Ftrl(rate, l1_regularization_strength=0.3)),
    ({"name": "ftrl", "l2": 0.2}, lambda rate: ko.Ftrl(rate, l2_regularization_strength=0.2)),
    ({"name": "lion"}, ko.Lion),
    ({"name": "lion", "beta1": 0.5, "beta2": 0.75}, lambda rate: ko.Lion(rate, beta_1=0.5, beta_2=0.75)),
    ({"name": "lamb"}, ko.Lamb),
    (
        {"name": "lamb", "beta1": 0.5, "beta2": 0.75, "epsilon": 0.1},
        lambda rate: ko.Lamb(rate, beta_1=0.5, beta_2=0.75, epsilon=0.1),
    ),
    ({"name": "sgd", "weight_decay": 0.3}, lambda rate: ko.SGD(rate, weight_decay=0.3)),
    ({"name": "momentum", "weight_decay": 0.3}, lambda rate: ko.SGD(rate, momentum=0.9, weight_decay=0.3)),
    ({"name": "adam", "weight_decay": 0.3}, lambda rate: ko.Adam(rate, weight_decay=0.3)),
    ({"name": "adamw", "weight_decay": None}, ko.Adam),
    ({"name": "adagrad", "weight_decay": 0.3}, lambda rate: ko.Adagrad(rate, weight_decay=0.3)),
    ({"name": "rmsprop", "weight_decay": 0.3}, lambda rate: ko.RMSprop(rate, weight_decay=0.3)),
    (
        {"name": "rmsprop", "centered": True, "weight_decay": 0.3},
        lambda rate: ko.RMSprop(rate, centered=True, weight_decay=0.3),
    ),
    ({"name": "ftrl", "weight_decay": 0.3}, lambda rate: ko.Ftrl(rate, weight_decay=0.3)),
    ({"name": "lion", "weight_decay": 0.3}, lambda rate: ko.Lion(rate, weight_decay=0.3)),
    ({"name": "lamb", "weight_decay": 0.3}, lambda rate: ko.Lamb(rate, weight_decay=0.3)),
]
WITH_SCHEDULE = [case for case in CASES if len(case[0]) == 1 or "nesterov" in case[0]]
FALLING = {"kind": "exponential", "decay_steps": 5, "decay_rate": 0.7}


def name_of(value: Any) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else "keras"


@pytest.mark.parametrize(("optimizer", "build"), first_rows(CASES, 10), ids=name_of)
def test_fifty_steps_are_those_of_keras(optimizer: dict[str, Any], build: Build) -> None:
    check_steps({**optimizer, "learning_rate": RATE}, build(RATE))


@pytest.mark.parametrize(("optimizer", "build"), WITH_SCHEDULE, ids=name_of)
def test_fifty_steps_with_a_falling_rate_are_those_of_keras(optimizer: dict[str, Any], build: Build) -> None:
    scheduled = {**optimizer, "learning_rate": RATE, "schedule": FALLING}
    check_steps(scheduled, build(keras.optimizers.schedules.ExponentialDecay(RATE, 5, 0.7)))


def check_steps(optimizer: dict[str, Any], reference: keras.optimizers.Optimizer) -> None:
    """Compares the weights after each step."""
    generator = np.random.default_rng(3)
    gradients = (generator.normal(size=(STEPS, SCALES.size)) * SCALES).astype(np.float32)
    start = generator.normal(size=SCALES.size).astype(np.float32)
    expected = trained_by_keras(reference, start, gradients)
    assert np.abs(expected[-1] - start).max() > 1000 * MAX_DIFFERENCE, "hardly trained"
    for step, (weights, wanted) in enumerate(zip(trained(optimizer, start, gradients), expected, strict=True)):
        np.testing.assert_allclose(weights, wanted, rtol=0, atol=MAX_DIFFERENCE, err_msg=f"after step {step + 1}")


@pytest.mark.parametrize(
    "optimizer",
    [case[0] for case in CASES if len(case[0]) == 1 or "centered" in case[0]]
    + [{"name": "adagrad", "initial_accumulator": 0.0}, {"name": "ftrl", "initial_accumulator": 0.0}],
    ids=name_of,
)
def test_weights_stay_finite_under_a_gradient_of_zero_or_one_that_is_always_the_same(optimizer: dict[str, Any]) -> None:
    """The gradient of the gaps between tensors is always 0, and their weights stay 0."""
    gradients = np.tile(np.array([0.0, 1 / 3, 0.5, 1.0], np.float32), (400, 1))
    seen = trained({**optimizer, "learning_rate": RATE}, np.zeros(4, np.float32), gradients)
    assert np.isfinite(seen).all()
    assert not np.array(seen)[:, 0].any(), "the weights of a gap moved"


def test_centered_rmsprop_stays_finite_where_the_variance_is_a_rounding_error() -> None:
    """Keras takes the root of a negative number here."""
    gradients = np.repeat(np.array([[10.0], [3.0]], np.float32), 200, axis=0)
    start = np.zeros(1, np.float32)
    assert np.isnan(trained_by_keras(ko.RMSprop(RATE, centered=True), start, gradients)[-1])
    seen = trained({"name": "rmsprop", "centered": True, "learning_rate": RATE}, start, gradients)
    assert np.isfinite(seen).all()


def test_a_strong_l1_penalty_of_ftrl_makes_weights_exactly_zero() -> None:
    start = np.array([0.1, -0.1], np.float32)
    optimizer = {"name": "ftrl", "learning_rate": RATE, "l1": 10.0}
    assert trained(optimizer, start, np.full((1, 2), 0.01, np.float32))[-1].tolist() == [0.0, 0.0]


def trained(optimizer: dict[str, Any], start: np.ndarray, gradients: np.ndarray) -> list[np.ndarray]:
    """The weights after each step of `ps_service`'s optimizer; `start` is `[size]`, `gradients` are `[steps, size]`."""
    fields = TypeAdapter(Optimizer).validate_python(optimizer)
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("weights", initializer=start, use_resource=True)
        global_step = v1.get_variable("global_step", initializer=np.int64(0), use_resource=True, trainable=False)
        gradient = v1.placeholder(tf.float32, start.shape)
        built = optimizers.build(fields, optimizers.learning_rate(fields, global_step.read_value()))
        with tf.control_dependencies([built.apply_gradients([(gradient, variable)], global_step)]):
            after = variable.read_value()
        initializer = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initializer)
        # Not make_callable, whose every call prepares feeds and fetches anew: a third of this file's time.
        options = config_pb2.CallableOptions(feed=[gradient.name], fetch=[after.name])
        step = session._make_callable_from_options(options)
        return [step(row)[0] for row in gradients]


def trained_by_keras(
    optimizer: keras.optimizers.Optimizer, start: np.ndarray, gradients: np.ndarray
) -> list[np.ndarray]:
    """The same by `keras.optimizers`."""
    variable = keras.Variable(start)
    optimizer.build([variable])

    def step(gradient: tf.Tensor) -> tf.Tensor:
        optimizer.apply([gradient])
        return variable.value.read_value()

    compiled = tf.function(step, autograph=False)
    return [compiled(tf.constant(row)).numpy() for row in gradients]
