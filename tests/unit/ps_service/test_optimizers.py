"""Each optimizer takes the steps of its formula, and each schedule gives the rates of its formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.numpy_optimizers import rule

from ps_service import optimizers
from psfleet.job.job import Job, parse_job

STEPS = 6
SIZE = 7
RATE = 0.05
HALVING = {"kind": "exponential", "decay_steps": 1, "decay_rate": 0.5}
"""The rate halves with each step, so that an optimizer which does not follow the schedule is found out."""


def job_of(optimizer: dict[str, Any]) -> Job:
    """A job with an optimizer as the job file writes it."""
    return parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"learning_rate": RATE, **optimizer},
            "train": {"steps": STEPS, "batch_size": 1},
        }
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd"},
        {"name": "momentum"},
        {"name": "momentum", "momentum": 0.5},
        {"name": "momentum", "nesterov": True},
        {"name": "adam"},
        {"name": "adam", "beta1": 0.5, "beta2": 0.75, "epsilon": 0.1},
        {"name": "adamw", "weight_decay": 0.01},
        {"name": "adamw", "weight_decay": 2.0, "beta1": 0.5, "beta2": 0.75, "epsilon": 0.1},
        {"name": "adagrad"},
        {"name": "adagrad", "initial_accumulator": 2.0},
        {"name": "rmsprop"},
        {"name": "rmsprop", "decay": 0.5, "momentum": 0.75, "epsilon": 0.1},
        {"name": "rmsprop", "centered": True},
        {"name": "ftrl"},
        {"name": "ftrl", "learning_rate_power": -0.75, "initial_accumulator": 0.5},
        {"name": "ftrl", "l1": 0.3, "l2": 0.2},
    ],
    ids=lambda optimizer: "-".join(map(str, optimizer.values())),
)
def test_an_optimizer_takes_the_steps_of_its_formula(optimizer: dict[str, Any]) -> None:
    gradients = np.random.default_rng(3).normal(size=(STEPS, SIZE)).astype(np.float32)
    start = np.linspace(-1, 1, SIZE, dtype=np.float32)
    expected, step_of = start.astype(np.float64), rule(optimizer)
    for step, weights in enumerate(trained({**optimizer, "schedule": HALVING}, start, gradients)):
        expected = step_of(expected, gradients[step].astype(np.float64), RATE * 0.5**step)
        np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6, err_msg=f"after step {step + 1}")


def test_the_decay_of_adamw_is_decoupled_from_the_gradient() -> None:
    """Where the gradient is zero Adam stands still, and AdamW takes its part of the weights all the same."""
    start, still = np.array([1.0, -2.0], np.float32), np.zeros((1, 2), np.float32)
    np.testing.assert_array_equal(trained({"name": "adam"}, start, still)[-1], start)
    np.testing.assert_allclose(
        trained({"name": "adamw", "weight_decay": 0.5}, start, still)[-1], start * (1 - RATE / 2)
    )


def test_a_strong_l1_penalty_of_ftrl_makes_weights_exactly_zero() -> None:
    start = np.array([0.1, -0.1], np.float32)
    weights = trained({"name": "ftrl", "l1": 10.0}, start, np.full((1, 2), 0.01, np.float32))[-1]
    assert weights.tolist() == [0.0, 0.0]


def trained(optimizer: dict[str, Any], start: np.ndarray, gradients: np.ndarray) -> list[np.ndarray]:
    """The weights after each step of `ps_service`'s optimizer; `start` is `[size]`, `gradients` are `[steps, size]`."""
    fields = job_of(optimizer).optimizer
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("weights", initializer=start, use_resource=True)
        global_step = v1.get_variable("global_step", initializer=np.int64(0), use_resource=True, trainable=False)
        gradient = v1.placeholder(tf.float32, start.shape)
        built = optimizers.build(fields, optimizers.learning_rate(fields, global_step.read_value()))
        update = built.apply_gradients([(gradient, variable)], global_step)
        initializer = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initializer)
        seen = []
        for row in gradients:
            session.run(update, {gradient: row})
            seen.append(session.run(variable))
        return seen


def exponential(step: int) -> float:
    return 0.9 ** (step / 4)


def staircase(step: int) -> float:
    return 0.9 ** (step // 4)


def piecewise(step: int) -> float:
    return [1.0, 0.5, 0.25][(step >= 3) + (step >= 8)]


def cosine(step: int) -> float:
    return 0.2 + 0.8 * (1 + math.cos(math.pi * min(step, 10) / 10)) / 2


SCHEDULES = [
    ({"kind": "constant"}, lambda step: 1.0),
    ({"kind": "exponential", "decay_steps": 4, "decay_rate": 0.9}, exponential),
    ({"kind": "exponential", "decay_steps": 4, "decay_rate": 0.9, "staircase": True}, staircase),
    ({"kind": "piecewise", "boundaries": [3, 8], "factors": [1.0, 0.5, 0.25]}, piecewise),
    ({"kind": "cosine", "decay_steps": 10, "final_factor": 0.2}, cosine),
]
IDS = ["constant", "exponential", "staircase", "piecewise", "cosine"]


@pytest.mark.parametrize(("schedule", "factor"), SCHEDULES, ids=IDS)
@pytest.mark.parametrize("warmup_steps", [0, 1, 5])
def test_a_schedule_gives_the_rates_of_its_formula(schedule: dict[str, Any], factor: Any, warmup_steps: int) -> None:
    steps = range(14)
    expected = [RATE * factor(step) * (min(1, (step + 1) / warmup_steps) if warmup_steps else 1) for step in steps]
    np.testing.assert_allclose(rates({**schedule, "warmup_steps": warmup_steps}, steps), expected, rtol=1e-5)


def test_a_warm_up_begins_above_zero_and_reaches_the_full_rate_at_its_last_step() -> None:
    assert rates({"kind": "constant", "warmup_steps": 4}, range(6)) == pytest.approx(
        [RATE / 4, RATE / 2, RATE * 3 / 4, RATE, RATE, RATE]
    )


def test_a_rate_stays_exact_at_steps_beyond_the_whole_numbers_of_float32() -> None:
    """2^24 + 1 is no float32: a boundary there is compared as a whole number."""
    boundary = 2**24 + 1
    schedule = {"kind": "piecewise", "boundaries": [boundary], "factors": [1.0, 0.5]}
    assert rates(schedule, [boundary - 1, boundary]) == pytest.approx([RATE, RATE / 2])


def rates(schedule: dict[str, Any], steps: Any) -> list[float]:
    """The scheduled rate at each of the steps."""
    fields = job_of({"name": "sgd", "schedule": schedule}).optimizer
    with tf.Graph().as_default() as graph:
        step = v1.placeholder(tf.int64, [])
        rate = optimizers.learning_rate(fields, step)
    with v1.Session(graph=graph) as session:
        return [float(session.run(rate, {step: at})) for at in steps]
