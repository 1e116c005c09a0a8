"""What a worker, spare or chief exposes to Prometheus; values are read at scrape time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psfleet
from psfleet.checkpoint.manifest import MANIFEST
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.layout.buckets import loss_order, loss_ranges
from psfleet.service import metrics
from psfleet.service.metrics import Reading, Readings
from psfleet.tf import shard_segments
from psfleet.tf.optimizer_slots import OptimizerSlots, exchanged_slots
from psfleet.tf.traced_update import TracedUpdate
from worker_service.chief.components import ChiefComponents
from worker_service.heartbeat import Heartbeat
from worker_service.progress import TrainingProgress

WIRE_BYTES = {"float32": 4, "bfloat16": 2}
"""Of one element on the wire."""
SLOT_BYTES = 4
"""Of one element of an optimizer slot."""
WORD_BYTES = 8
"""Of one of the optimizer's scalars."""
STEPS_BYTES = 16
"""Two int64: a push carries the local step and the gradient's number; a pull the global step and the final step."""


@dataclass(frozen=True)
class Payload:
    """Bytes between one worker and all ps together, by layout and wire type.

    Attributes:
        push: Sent in a step.
        pull: Received in a step.
        attach: Received once in a session: state and frozen weights.
    """

    push: int
    pull: int
    attach: int

    @classmethod
    def of(cls, job: Job, layout: Layout, index: int, slots: OptimizerSlots | None = None) -> Payload:
        """As `worker_service.push_pull` sends them: buckets, steps and averages; the chief also sends other state.

        A push has the buckets of one loss; of several losses this is the mean over the order of the job.

        Args:
            slots: That are exchanged, too; None: none.
        """
        slots = slots or OptimizerSlots()
        wire_bytes = WIRE_BYTES[job.update.wire]
        element = wire_bytes + SLOT_BYTES * len(slots.slots)
        num_segments = sum(len(shard_segments(job, layout, shard)) for shard in range(layout.num_ps))
        numbers = num_segments * (WORD_BYTES * len(slots.scalars) + STEPS_BYTES)
        ranges_of_losses = loss_ranges(layout.parameters)
        order = loss_order(layout.parameters, job.train.alternate)
        pushed = sum(stop - start for start, stop in (ranges_of_losses[loss] for loss in order)) // len(order)
        ranges = [part for shard in range(layout.num_ps) for part in layout.state_ranges(shard)]
        averages = sum(part.num_bytes for part in ranges if part.float_dtype)
        others = sum(part.num_bytes for part in ranges) - averages
        return cls(
            push=pushed * element + numbers + averages + (others if index == 0 else 0),
            pull=layout.parameters.size * element + numbers + averages,
            attach=layout.state.size + layout.frozen.size,
        )


class WorkerMetrics:
    """The metrics of one worker. Each `add_` method makes further metrics available, in the order of a worker's start.

    The main thread adds, once each; the metrics server's threads read.
    """

    def __init__(self, run: str, job: Job, progress: TrainingProgress) -> None:
        self._run = run
        self._job = job
        self._progress = progress
        self._heartbeat: Heartbeat | None = None
        self._payload: Payload | None = None
        self._chief: ChiefComponents | None = None

    def add_heartbeat(self, heartbeat: Heartbeat) -> None:
        """The worker has joined the run."""
        self._heartbeat = heartbeat

    def add_layout(self, layout: Layout, index: int, update: TracedUpdate | None = None) -> None:
        """The program is loaded.

        Args:
            update: Of the program's own optimizer, if this worker applies it.
        """
        self._payload = Payload.of(self._job, layout, index, exchanged_slots(self._job, update))

    def add_chief(self, components: ChiefComponents) -> None:
        """The worker is the chief."""
        self._chief = components

    def read(self) -> Iterator[Readings]:
        """The present values; nothing before this worker has an index. May be called from any thread."""
        heartbeat, progress = self._heartbeat, self._progress
        if heartbeat is None:
            return
        readings = [
            Reading(metrics.BUILD_INFO, 1, (psfleet.__version__,)),
            Reading(metrics.STEP, progress.step),
            Reading(metrics.TARGET_STEP, self._job.train.steps),
            Reading(metrics.GENERATION, heartbeat.generation),
            Reading(metrics.STEP_SECONDS, progress.step_secs.read()),
            Reading(metrics.STEPS_ABANDONED, progress.abandoned),
            Reading(metrics.RECOVERY_SECONDS, progress.recovery_secs.read()),
        ]
        if self._payload is not None:
            readings += _traffic(progress, self._payload)
        if self._chief is not None:
            readings += _of_chief(self._chief)
        yield Readings(self._run, self._job.fleet.role(heartbeat.index), heartbeat.index, readings)


def _traffic(progress: TrainingProgress, payload: Payload) -> list[Reading]:
    pulled = progress.pulls * payload.pull + progress.sessions * payload.attach
    return [Reading(metrics.PUSHED_BYTES, progress.pushed * payload.push), Reading(metrics.PULLED_BYTES, pulled)]


def _of_chief(chief: ChiefComponents) -> list[Reading]:
    readings = [
        Reading(metrics.RESTARTS, count, (f"{role}-{index}",))
        for (role, index), count in sorted(dict(chief.events.restarts).items())
        if count
    ]
    readings.append(Reading(metrics.STEPS_LOST, chief.events.steps_lost))
    if chief.recorder.loss is not None:
        readings.append(Reading(metrics.LOSS, chief.recorder.loss))
    checkpoint = chief.committer.newest
    if checkpoint is not None:
        readings.append(Reading(metrics.CHECKPOINT_STEP, checkpoint.step))
        written = chief.committer.committed_at
        if isinstance(checkpoint.folder, Path):
            with suppress(OSError):
                written = (checkpoint.folder / MANIFEST).stat().st_mtime
        if written is not None:
            readings.append(Reading(metrics.CHECKPOINT_AGE, max(0.0, time.time() - written)))
    return readings
