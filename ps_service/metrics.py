"""What a ps exposes to Prometheus; values are read at scrape time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

import psfleet
from ps_service.run_state import Run
from ps_service.shard import Shard
from ps_service.shard_graph import Counters
from psfleet.service import metrics
from psfleet.service.metrics import Distribution, Reading, Readings

NO_RUN = ""
"""Run label of a ps without a run."""


class PsMetrics:
    """The metrics of one ps."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._counters: dict[str, GradientCounter] = {}
        self._lock = threading.Lock()

    def read(self, runs: Sequence[Run]) -> Iterator[Readings]:
        """The present values; from any thread."""
        with self._lock:
            self._counters = {run.name: self._counters.get(run.name) or GradientCounter() for run in runs}
            for run in runs:
                yield Readings(run.name, "ps", self._index, self._of(run, self._counters[run.name]))
        if not runs:
            yield Readings(NO_RUN, "ps", self._index, [_build_info()])

    def _of(self, run: Run, gradients: GradientCounter) -> list[Reading]:
        workers, shard = run.workers(), run.shard
        alive = sum(worker.is_alive for worker in workers)
        known = [worker.index for worker in workers]
        readings = [_build_info(), Reading(metrics.WORKERS_ALIVE, alive)]
        if shard is None:
            return readings
        # Read first: what is pending in counters that were read before the last update is not dropped.
        is_complete = shard.is_complete
        try:
            counters = shard.counters()
        except (tf.errors.OpError, RuntimeError):
            # The shard was closed meanwhile; a closed session raises RuntimeError.
            return readings
        counted = gradients.read(shard.plan.generation, is_complete, counters, known)
        return [*readings, *_of_shard(shard), *_of_counters(counters), *counted]


class GradientCounter:
    """Counts the dropped gradients of one run apart from the pending ones, which may still be used.

    At most one gradient of each worker is pending, its newest: a worker waits for the ps before it pushes another. All
    other unused gradients are dropped; the maximum over all readings is exact and never falls. After the final step no
    gradient is used, so none is pending.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._dropped = np.zeros(0, np.int64)

    def read(self, generation: int, is_complete: bool, counters: Counters, workers: Sequence[int]) -> list[Reading]:
        """Gradients by worker; in each reading pushed = used + dropped + pending."""
        if generation != self._generation:
            self._generation, self._dropped = generation, np.zeros_like(counters.pushed)
        num_pending = 0 if is_complete else 1
        self._dropped = np.maximum(self._dropped, counters.pushed - counters.used - num_pending)
        # A gradient used after `pushed` was read is only in `used`.
        pushed = np.maximum(counters.pushed, counters.used + self._dropped)
        pending = pushed - counters.used - self._dropped
        columns = (
            (metrics.PUSHED, pushed),
            (metrics.USED, counters.used),
            (metrics.DROPPED, self._dropped),
            (metrics.PENDING, pending),
            (metrics.TOKEN_WAIT, counters.waited_secs),
        )
        return [
            Reading(metric, values[worker].item(), (str(worker),))
            for metric, values in columns
            for worker in workers
            if worker < len(values)
        ]


def _of_shard(shard: Shard) -> list[Reading]:
    step = shard.step
    return [
        Reading(metrics.STEP, step),
        Reading(metrics.TARGET_STEP, shard.final_step),
        Reading(metrics.GENERATION, shard.plan.generation),
        Reading(metrics.UPDATES, step - shard.first_step),
        Reading(metrics.WAITING, time.monotonic() - shard.last_update),
        Reading(metrics.HELD_BYTES, shard.model_bytes, ("model",)),
        Reading(metrics.HELD_BYTES, shard.optimizer_bytes, ("optimizer",)),
    ]


def _of_counters(counters: Counters) -> list[Reading]:
    return [
        Reading(metrics.STALENESS, staleness(counters.staleness.sum(axis=0))),
        Reading(metrics.UPDATE_SECONDS, float(counters.update_secs)),
    ]


def staleness(counts: np.ndarray) -> Distribution:
    """Counts by staleness, int64 `[STALENESS_BUCKETS]`, in the metric's buckets; the last entry counts as its index."""
    bounds = metrics.STALENESS_BOUNDS
    starts = [0, *[bound + 1 for bound in bounds]]
    grouped = [int(counts[low:high].sum()) for low, high in zip(starts, [*starts[1:], len(counts)], strict=True)]
    return Distribution(bounds, grouped, float((counts * np.arange(len(counts))).sum()))


def _build_info() -> Reading:
    return Reading(metrics.BUILD_INFO, 1, (psfleet.__version__,))
