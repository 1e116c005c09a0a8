"""What the fleet measures of itself: each metric's name, type, unit, labels and meaning, and who tells it.

Nothing here needs prometheus_client: `psfleet.service.metrics_server` exports these to Prometheus. Names follow
Prometheus's naming page: base units, the unit last, `_total` behind counters.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

PREFIX = "psfleet_"
COMMON_LABELS = ("run", "role", "index")
"""Labels of every metric: the run, the role of the process that tells it (ps, chief, worker, spare), its index."""

PS = ("ps",)
CHIEF = ("chief",)
WORKERS = ("chief", "worker", "spare")
ALL = (*PS, *WORKERS)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: With the prefix, without the `_total` of a counter.
        unit: In words; a number of things has none.
        roles: Which processes tell it.
        labels: Its own, beside `COMMON_LABELS`.
    """

    name: str
    kind: Kind
    unit: str
    roles: tuple[str, ...]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """As queries write it; a histogram's have `_bucket`, `_sum` and `_count` behind it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS: list[Metric] = []
"""Every metric, in the order of the documentation."""


def _metric(
    name: str, kind: Kind, unit: str, roles: tuple[str, ...], meaning: str, labels: tuple[str, ...] = ()
) -> Metric:
    METRICS.append(Metric(f"{PREFIX}{name}", kind, unit, roles, meaning, labels))
    return METRICS[-1]


BUILD_INFO = _metric("build_info", "gauge", "", ALL, "Always 1; the label has the version of psfleet.", ("version",))
STEP = _metric("step", "gauge", "steps", ALL, "Version of the shard (ps), or of the local parameters (workers).")
TARGET_STEP = _metric("target_step", "gauge", "steps", ALL, "Version at which training ends.")
GENERATION = _metric(
    "generation", "gauge", "", ALL, "Generation of the fleet's state; each rollback begins one. -1: none at the moment."
)
LOSS = _metric("loss", "gauge", "the program's", CHIEF, "Training loss of the chief's newest batch.")
STEP_SECONDS = _metric(
    "step_seconds",
    "histogram",
    "seconds",
    WORKERS,
    "From the end of one step of this worker to the end of its next: batch, gradients, push, token, pull.",
)
PUSHED = _metric(
    "gradients_pushed",
    "counter",
    "gradients",
    PS,
    "Gradients that came from a worker in this generation.",
    ("worker",),
)
USED = _metric("gradients_used", "counter", "gradients", PS, "Those that became part of an update.", ("worker",))
DROPPED = _metric("gradients_dropped", "counter", "gradients", PS, "Those that are known to be lost.", ("worker",))
PENDING = _metric(
    "gradients_pending",
    "gauge",
    "gradients",
    PS,
    "pushed - used - dropped: a worker's newest gradient while it may still be used; 0 once the target is reached.",
    ("worker",),
)
STALENESS = _metric(
    "gradient_staleness_steps",
    "histogram",
    "steps",
    PS,
    "Updates applied between reading parameters and the arrival (sync) or application (async) of the gradient.",
)
TOKEN_WAIT = _metric(
    "token_wait_seconds",
    "counter",
    "seconds",
    PS,
    "From a worker's gradient being on this ps to the worker being let go on, by the ps's clock: time at the barrier.",
    ("worker",),
)
UPDATE_SECONDS = _metric(
    "update_seconds",
    "counter",
    "seconds",
    PS,
    "Time spent in the optimizer, applying updates to the shard; waiting for gradients and averaging are not in it.",
)
UPDATES = _metric("updates", "counter", "updates", PS, "Updates applied by this process in this generation.")
WAITING = _metric("waiting_seconds", "gauge", "seconds", PS, "Time since the last update.")
WORKERS_ALIVE = _metric("workers_alive", "gauge", "workers", PS, "Workers and spares that spoke in the last 5 seconds.")
HELD_BYTES = _metric(
    "held_bytes",
    "gauge",
    "bytes",
    PS,
    "Memory of tensors on this ps: model (parameters, state, frozen weights) and optimizer (its slots).",
    ("what",),
)
PUSHED_BYTES = _metric(
    "pushed_bytes",
    "counter",
    "bytes",
    WORKERS,
    "Payload that this process sent to all ps, by layout and wire type; without the protocol's own bytes.",
)
PULLED_BYTES = _metric("pulled_bytes", "counter", "bytes", WORKERS, "Payload that it fetched from all ps, likewise.")
CHECKPOINT_STEP = _metric("checkpoint_step", "gauge", "steps", CHIEF, "Step of the newest complete checkpoint.")
CHECKPOINT_AGE = _metric(
    "checkpoint_age_seconds", "gauge", "seconds", CHIEF, "Time since the newest complete checkpoint was completed."
)
RESTARTS = _metric(
    "restarts",
    "counter",
    "restarts",
    CHIEF,
    "How often a process of the run was started again; the label has its role and index.",
    ("task",),
)
STEPS_LOST = _metric("steps_lost", "counter", "steps", CHIEF, "Applied steps that were lost with a ps.")
RECOVERY_SECONDS = _metric(
    "recovery_seconds",
    "histogram",
    "seconds",
    WORKERS,
    "From this process's loss of a peer (a ps, or the session with it) to the end of its next step.",
)

STEP_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RECOVERY_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 63)


@dataclass(frozen=True)
class Distribution:
    """A histogram's values.

    Attributes:
        bounds: Upper ends of its buckets, without the last, which has none.
        counts: Observations in each bucket, not cumulated; one more than `bounds`.
        total: Sum of all observations.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float

    def cumulated(self) -> Iterator[tuple[str, int]]:
        """Buckets as Prometheus has them: the bound as text, and the observations up to it."""
        count = 0
        for bound, own in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += own
            yield ("+Inf" if bound == float("inf") else repr(float(bound))), count


@dataclass(frozen=True)
class Reading:
    """What a metric says now.

    Attributes:
        labels: Values of the metric's own labels, in their order.
    """

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Readings:
    """All that one process says of one run."""

    run: str
    role: str
    index: int
    readings: Sequence[Reading]


class Times:
    """Collects durations in buckets; `add` costs less than a microsecond and may be called from any thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def add(self, secs: float) -> None:
        """One more."""
        with self._lock:
            self._counts[bisect_left(self._bounds, secs)] += 1
            self._total += secs

    def read(self) -> Distribution:
        """All until now."""
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._total)
