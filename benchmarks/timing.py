"""Measures the duration of steps in milliseconds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from benchmarks.workload import Workload


@dataclass(frozen=True)
class StepTimes:
    """Durations of a worker's timed steps in milliseconds, and their number."""

    p50_ms: float
    p95_ms: float
    mean_ms: float
    num_steps: int


def time_steps(run_step: Callable[[int], int], workload: Workload) -> StepTimes:
    """Runs steps until the workload's last one, and returns the durations of those after the warm-up.

    Args:
        run_step: Runs the worker's i-th step and returns the model's number of steps since the start.
        workload: The numbers of timed and warm-up steps.
    """
    durations_ms: list[float] = []
    done_steps = 0
    while done_steps < workload.total_steps:
        start = perf_counter()
        done_steps = run_step(len(durations_ms))
        durations_ms.append((perf_counter() - start) * 1000)
    timed = durations_ms[workload.warmup_steps :]
    return StepTimes(
        p50_ms=statistics.median(timed),
        p95_ms=statistics.quantiles(timed, n=20)[-1],
        mean_ms=statistics.fmean(timed),
        num_steps=len(timed),
    )
