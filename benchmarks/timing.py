"""Measures the duration of steps in milliseconds, or how long a model trains until it has an accuracy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from benchmarks.workload import Workload


@dataclass(frozen=True)
class StepTimes:
    """Durations of a worker's timed steps in milliseconds, and their number.

    Attributes:
        began: Unix time at which the first timed step began, in seconds.
        ended: Unix time at which the last one ended.
    """

    p50_ms: float
    p95_ms: float
    mean_ms: float
    num_steps: int
    began: float
    ended: float


def time_steps(run_step: Callable[[int], int], workload: Workload) -> StepTimes:
    """Runs steps until the workload's last one, and returns the durations of those after the warm-up.

    Args:
        run_step: Runs the worker's i-th step and returns the model's number of steps since the start.
        workload: The numbers of timed and warm-up steps.
    """
    durations_ms: list[float] = []
    done_steps = 0
    began = time.time()
    while done_steps < workload.total_steps:
        if len(durations_ms) == workload.warmup_steps:
            began = time.time()
        start = perf_counter()
        done_steps = run_step(len(durations_ms))
        durations_ms.append((perf_counter() - start) * 1000)
    return step_times(durations_ms[workload.warmup_steps :], began, time.time())


def step_times(durations_ms: Sequence[float], began: float, ended: float) -> StepTimes:
    """The figures of at least two durations."""
    return StepTimes(
        p50_ms=statistics.median(durations_ms),
        p95_ms=statistics.quantiles(durations_ms, n=20)[-1],
        mean_ms=statistics.fmean(durations_ms),
        num_steps=len(durations_ms),
        began=began,
        ended=ended,
    )


@dataclass(frozen=True)
class Reached:
    """The first evaluation with the accuracy that was asked for, or the last one.

    Attributes:
        steps: That the model had.
        accuracy: Share of the test images.
        began: Unix time at which the steps of the warm-up had ended, in seconds.
        ended: Unix time at which that evaluation ended.
    """

    steps: int
    accuracy: float
    began: float
    ended: float


def train_until(run: Callable[[int, int], int], accuracy: Callable[[], float], workload: Workload) -> Reached:
    """Trains and evaluates in turn.

    Args:
        run: Trains from a number of steps to another one at least; returns the model's number of steps.
        accuracy: Evaluates the model, on the share of the test images.
        workload: Says how many steps are the warm-up, in which all processes start, how often to evaluate, until which
            accuracy, and for how many steps at most.
    """
    steps = run(0, workload.warmup_steps)
    began = time.time()
    every = workload.evaluate_steps
    while True:
        steps = run(steps, (steps // every + 1) * every)
        found = accuracy()
        if found >= workload.accuracy or steps >= workload.steps:
            return Reached(steps, found, began, time.time())


def _one_by_one(run_step: Callable[[int], int]) -> Callable[[int, int], int]:
    """A `run` of `train_until` from a function that makes the i-th step of a worker and returns the model's number."""
    number = 0

    def run(steps: int, until: int) -> int:
        nonlocal number
        while steps < until:
            steps = run_step(number)
            number += 1
        return steps

    return run


def timed(
    run_step: Callable[[int], int], accuracy: Callable[[], float] | None, workload: Workload
) -> StepTimes | Reached:
    """Trains a workload to its end.

    Args:
        run_step: See `time_steps`.
        accuracy: See `train_until`; None: the workload has none, and each of its steps is timed.
    """
    if accuracy is None:
        return time_steps(run_step, workload)
    return train_until(_one_by_one(run_step), accuracy, workload)
