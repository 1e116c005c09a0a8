"""Definition of all metrics: name, type, unit, labels, help text, and the roles that export them.

This module does not need prometheus_client; `psfleet.service.metrics_server` exports the metrics. Names follow
Prometheus's conventions: base units, the unit as suffix, `_total` as suffix of counters.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

PREFIX = "psfleet_"
COMMON_LABELS = ("run", "role", "index")
"""Labels of every metric: the run, and role (ps, chief, worker, spare, loader) and index of the exporting process."""

PS = ("ps",)
CHIEF = ("chief",)
WORKERS = ("chief", "worker", "spare")
ALL = (*PS, *WORKERS)
LOADER = ("loader",)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Name with the prefix, without the `_total` of a counter.
        unit: Unit in words; empty for numbers without a unit.
        roles: Roles of the processes that export it.
        labels: Labels in addition to `COMMON_LABELS`.
    """

    name: str
    kind: Kind
    unit: str
    roles: tuple[str, ...]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """Name in queries; those of a histogram have the suffixes `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS: list[Metric] = []
"""All metrics, in the order of the documentation."""


def _metric(
    name: str, kind: Kind, unit: str, roles: tuple[str, ...], meaning: str, labels: tuple[str, ...] = ()
) -> Metric:
    METRICS.append(Metric(f"{PREFIX}{name}", kind, unit, roles, meaning, labels))
    return METRICS[-1]


BUILD_INFO = _metric(
    "build_info", "gauge", "", (*ALL, *LOADER), "Always 1; the label is the version of psfleet.", ("version",)
)
STEP = _metric("step", "gauge", "steps", ALL, "Global step of the shard (ps) or of the local parameters (workers).")
TARGET_STEP = _metric("target_step", "gauge", "steps", ALL, "Final step, at which training ends.")
GENERATION = _metric(
    "generation", "gauge", "", ALL, "Generation of the fleet's state; each rollback starts a new one. -1: none."
)
LOSS = _metric("loss", "gauge", "the program's", CHIEF, "Training loss of the chief's latest batch.")
STEP_SECONDS = _metric(
    "step_seconds",
    "histogram",
    "seconds",
    WORKERS,
    "Time between the ends of two successive steps of this worker: batch, gradients, push, token, pull.",
)
PUSHED = _metric(
    "gradients_pushed",
    "counter",
    "gradients",
    PS,
    "Gradients received from a worker in this generation.",
    ("worker",),
)
USED = _metric("gradients_used", "counter", "gradients", PS, "Gradients that were part of an update.", ("worker",))
DROPPED = _metric("gradients_dropped", "counter", "gradients", PS, "Gradients that were discarded.", ("worker",))
PENDING = _metric(
    "gradients_pending",
    "gauge",
    "gradients",
    PS,
    "pushed - used - dropped: a worker's latest gradient while it can still be used; 0 after the final step.",
    ("worker",),
)
STALENESS = _metric(
    "gradient_staleness_steps",
    "histogram",
    "steps",
    PS,
    "Updates applied between reading the parameters and receiving (sync, averaging) or applying the gradient.",
)
TOKEN_WAIT = _metric(
    "token_wait_seconds",
    "counter",
    "seconds",
    PS,
    "Time at the barrier: from the arrival of a worker's gradient on this ps to the release of the worker.",
    ("worker",),
)
UPDATE_SECONDS = _metric(
    "update_seconds",
    "counter",
    "seconds",
    PS,
    "Time in the optimizer, applying updates to the shard; without waiting for gradients and averaging them.",
)
UPDATES = _metric("updates", "counter", "updates", PS, "Updates applied by this process in this generation.")
WAITING = _metric("waiting_seconds", "gauge", "seconds", PS, "Time since the last update.")
WORKERS_ALIVE = _metric(
    "workers_alive", "gauge", "workers", PS, "Workers and spares with a heartbeat in the last 5 seconds."
)
HELD_BYTES = _metric(
    "held_bytes",
    "gauge",
    "bytes",
    PS,
    "Memory of tensors on this ps: model (parameters, rows of tables, state, frozen weights) and optimizer (slots).",
    ("what",),
)
STEPS_ABANDONED = _metric(
    "steps_abandoned",
    "counter",
    "steps",
    WORKERS,
    "Steps that this process ended early, without a gradient, because others had completed them (sync, with spares).",
)
PUSHED_BYTES = _metric(
    "pushed_bytes",
    "counter",
    "bytes",
    WORKERS,
    "Payload sent to all ps, computed from layout and wire type; without protocol overhead.",
)
PULLED_BYTES = _metric("pulled_bytes", "counter", "bytes", WORKERS, "Payload received from all ps, computed likewise.")
CHECKPOINT_STEP = _metric("checkpoint_step", "gauge", "steps", CHIEF, "Step of the newest complete checkpoint.")
CHECKPOINT_AGE = _metric(
    "checkpoint_age_seconds", "gauge", "seconds", CHIEF, "Time since the newest complete checkpoint was committed."
)
RESTARTS = _metric(
    "restarts",
    "counter",
    "restarts",
    CHIEF,
    "Restarts of a process of the run; the label is its role and index.",
    ("task",),
)
STEPS_LOST = _metric("steps_lost", "counter", "steps", CHIEF, "Applied steps that were lost with the state of a ps.")
RECOVERY_SECONDS = _metric(
    "recovery_seconds",
    "histogram",
    "seconds",
    WORKERS,
    "Time from the loss of a peer (a ps or the session with it) to the end of the next step.",
)

STEP_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RECOVERY_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 63)


@dataclass(frozen=True)
class Distribution:
    """The values of a histogram.

    Attributes:
        bounds: Upper bounds of its buckets, except the last, which is unbounded.
        counts: Observations in each bucket, not cumulative; one more than `bounds`.
        total: Sum of all observations.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float

    def cumulated(self) -> Iterator[tuple[str, int]]:
        """Cumulative buckets as in Prometheus: upper bound as text, and number of observations up to it."""
        count = 0
        for bound, own in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += own
            yield ("+Inf" if bound == float("inf") else repr(float(bound))), count


@dataclass(frozen=True)
class Reading:
    """The current value of a metric.

    Attributes:
        labels: Values of `metric.labels`, in their order.
    """

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Readings:
    """All current values of one process for one run."""

    run: str
    role: str
    index: int
    readings: Sequence[Reading]


class Times:
    """A histogram of durations. Thread-safe; `add` takes less than a microsecond."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def add(self, secs: float) -> None:
        """Adds an observation in seconds."""
        with self._lock:
            self._counts[bisect_left(self._bounds, secs)] += 1
            self._total += secs

    def read(self) -> Distribution:
        """The distribution of all observations."""
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._total)
