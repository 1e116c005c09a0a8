"""Trains until the model has an accuracy, and says how long that took after the first steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.workload import Workload


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


def one_by_one(run_step: Callable[[int], int]) -> Callable[[int, int], int]:
    """A function for `train_until` from one that makes the i-th step of a worker and returns the model's number."""
    number = 0

    def run(steps: int, until: int) -> int:
        nonlocal number
        while steps < until:
            steps = run_step(number)
            number += 1
        return steps

    return run
