"""Each learning rate schedule gives the rates of its counterpart in `keras.optimizers.schedules`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras.optimizers import schedules
from pydantic import TypeAdapter

from psfleet.job.learning_rate import reduced_rate, scheduled_rate
from psfleet.job.optimizer import Optimizer
from psfleet.tf import optimizers

RATE = 0.05
STEPS = range(14)
SCHEDULES: dict[str, tuple[dict[str, Any], Any]] = {
    "constant": ({"kind": "constant"}, lambda step: RATE),
    "exponential": (
        {"kind": "exponential", "decay_steps": 4, "decay_rate": 0.9},
        schedules.ExponentialDecay(RATE, 4, 0.9),
    ),
    "staircase": (
        {"kind": "exponential", "decay_steps": 4, "decay_rate": 0.9, "staircase": True},
        schedules.ExponentialDecay(RATE, 4, 0.9, staircase=True),
    ),
    "piecewise": (
        {"kind": "piecewise", "boundaries": [3, 8], "factors": [1.0, 0.5, 0.25]},
        schedules.PiecewiseConstantDecay([3, 8], [RATE, RATE * 0.5, RATE * 0.25]),
    ),
    "cosine": (
        {"kind": "cosine", "decay_steps": 10, "final_factor": 0.2},
        schedules.CosineDecay(RATE, 10, alpha=0.2),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup_steps", [0, 1, 5])
def test_a_schedule_gives_the_rates_of_keras_times_the_warm_up(name: str, warmup_steps: int) -> None:
    schedule, rate_of = SCHEDULES[name]
    warm_up = [min(1, (step + 1) / warmup_steps) if warmup_steps else 1 for step in STEPS]
    expected = [float(rate_of(step)) * factor for step, factor in zip(STEPS, warm_up, strict=True)]
    np.testing.assert_allclose(rates({**schedule, "warmup_steps": warmup_steps}, STEPS), expected, rtol=1e-5)
    recorded = [scheduled_rate(fields_of({**schedule, "warmup_steps": warmup_steps}), step) for step in STEPS]
    np.testing.assert_allclose(np.array(recorded, np.float64), expected, rtol=1e-5)


def test_the_recorded_rate_of_a_plateau_schedule_follows_from_the_steps_of_its_reductions() -> None:
    """A rate is at least the lowest one, and one below it stays as it is."""
    schedule = {"kind": "plateau", "metric": "accuracy", "factor": 0.5, "warmup_steps": 2}
    found = [scheduled_rate(fields_of({**schedule, "min_learning_rate": RATE / 3}), step, [3, 5, 5]) for step in STEPS]
    factors = [1 / 2, 1, 1, 1 / 2, 1 / 2, *[1 / 3] * (len(STEPS) - 5)]
    np.testing.assert_allclose(np.array(found, np.float64), [RATE * factor for factor in factors], rtol=1e-12)
    assert reduced_rate(fields_of({**schedule, "min_learning_rate": RATE * 2}), 3) == RATE


def test_a_warm_up_begins_above_zero_and_reaches_the_full_rate_at_its_last_step() -> None:
    assert rates({"kind": "constant", "warmup_steps": 4}, range(6)) == pytest.approx(
        [RATE / 4, RATE / 2, RATE * 3 / 4, RATE, RATE, RATE]
    )


def test_a_rate_stays_exact_at_steps_beyond_the_whole_numbers_of_float32() -> None:
    """2^24 + 1 is no float32: a boundary there is compared as a whole number."""
    boundary = 2**24 + 1
    schedule = {"kind": "piecewise", "boundaries": [boundary], "factors": [1.0, 0.5]}
    assert rates(schedule, [boundary, boundary + 1]) == pytest.approx([RATE, RATE / 2])


def fields_of(schedule: dict[str, Any]) -> Any:
    """The section of a job with a schedule."""
    return TypeAdapter(Optimizer).validate_python({"name": "sgd", "learning_rate": RATE, "schedule": schedule})


def rates(schedule: dict[str, Any], steps: Any) -> list[float]:
    """The scheduled rate at each of the steps."""
    fields = fields_of(schedule)
    with tf.Graph().as_default() as graph:
        step = v1.placeholder(tf.int64, [])
        rate = optimizers.learning_rate(fields, step)
    with v1.Session(graph=graph) as session:
        return [float(session.run(rate, {step: at})) for at in steps]
