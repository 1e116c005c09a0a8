"""Measures the duration of steps in milliseconds."""

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
