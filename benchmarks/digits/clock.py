"""Trains until the model has an accuracy."""

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
        began: Unix time at which the first step began, in seconds.
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
        workload: Says for how many steps at most, how often to evaluate, and until which accuracy.
    """
    began = time.time()
    steps = 0
    while True:
        steps = run(steps, steps + workload.evaluate_steps)
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
