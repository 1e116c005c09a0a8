"""The learning rate that a schedule gives at a step, for records; training computes it with `psfleet.tf.optimizers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from psfleet.job.job import Job
from psfleet.job.optimizer import Constant, Cosine, Exponential, OptimizerBase, Piecewise, Plateau

LEARNING_RATE = "learning_rate"
_FACTORS: dict[type, Callable[..., float]] = {
    Constant: lambda schedule, step: 1.0,
    Plateau: lambda schedule, step: 1.0,
    Exponential: lambda schedule, step: _exponential(schedule, step),
    Piecewise: lambda schedule, step: schedule.factors[sum(step > last for last in schedule.boundaries)],
    Cosine: lambda schedule, step: _cosine(schedule, step),
}
"""Factor of the learning rate by schedule, of the schedule and the step."""


def scheduled_rate(optimizer: OptimizerBase, step: int, reductions: Sequence[int] = ()) -> float | None:
    """The learning rate of the update that follows a step; in async mode before the policy for stale gradients.

    Args:
        reductions: The steps from which on a plateau schedule has reduced it.

    Returns:
        None if the schedule depends on more than the step and the reductions, or the rate is that of the program's
            optimizer object.
    """
    schedule = optimizer.schedule
    factor = _FACTORS.get(type(schedule))
    if factor is None or optimizer.learning_rate is None:
        return None
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    return reduced_rate(optimizer, sum(each <= step for each in reductions)) * factor(schedule, step) * warmup


def rates_of(job: Job, step: int, reductions: Sequence[int] = ()) -> dict[str, float | None]:
    """As `scheduled_rate`: the learning rate, or those of several losses, by the name in summaries."""
    return {
        f"{LEARNING_RATE}/{name}".rstrip("/"): scheduled_rate(rule, step, reductions)
        for name, rule in job.rules.items()
    }


def reduced_rate(optimizer: OptimizerBase, number: int) -> float:
    """The learning rate after a number of reductions by a plateau schedule, before the warm-up's factor.

    The job must have a learning rate; the chief has replaced null by that of the program's optimizer.
    """
    rate, schedule = optimizer.learning_rate, optimizer.schedule
    assert rate is not None
    if isinstance(schedule, Plateau):
        for _ in range(number):
            # As in Keras, a rate that is below the lowest one stays as it is.
            rate = min(rate, max(rate * schedule.factor, schedule.min_learning_rate))
    return rate


def _exponential(schedule: Exponential, step: int) -> float:
    exponent = step / schedule.decay_steps
    power: float = schedule.decay_rate ** (math.floor(exponent) if schedule.staircase else exponent)
    return power


def _cosine(schedule: Cosine, step: int) -> float:
    share = min(step, schedule.decay_steps) / schedule.decay_steps
    return schedule.final_factor + (1 - schedule.final_factor) * (1 + math.cos(math.pi * share)) / 2
