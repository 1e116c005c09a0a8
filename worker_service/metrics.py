"""What a worker, spare or chief tells Prometheus: read from what it has anyway when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psfleet
from psfleet.checkpoint.manifest import MANIFEST
from psfleet.job.job import Job
from psfleet.layout import Layout, contributor_mask_size
from psfleet.service import metrics
from psfleet.service.metrics import Reading, Readings
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.heartbeat import Heartbeat

WIRE_BYTES = {"float32": 4, "bfloat16": 2}
"""Of one element on the wire."""
VERSION_BYTES = 8
"""An int64: the label that travels with a push; a pull brings two, version and target."""


@dataclass(frozen=True)
class Payload:
    """Bytes of one step of one worker, by layout and wire type, to or from all ps together."""

    push: int
    pull: int
    attach: int

    @classmethod
    def of(cls, job: Job, layout: Layout, index: int) -> Payload:
        """As `worker_service.push_pull` sends them: buckets, roll call and label, and from the chief its state."""
        wire_bytes = WIRE_BYTES[job.update.wire]
        buckets = layout.parameters.size * wire_bytes
        roll_call = contributor_mask_size(job.fleet.worker_limit) * wire_bytes
        return cls(
            push=buckets + layout.num_ps * (roll_call + VERSION_BYTES) + (layout.state.size if index == 0 else 0),
            pull=buckets + layout.num_ps * (roll_call + 2 * VERSION_BYTES),
            attach=layout.state.size + layout.frozen.size,
        )


@dataclass(frozen=True)
class Duties:
    """What only the chief has."""

    committer: CheckpointCommitter
    events: Events
    recorder: Recorder


class WorkerMetrics:
    """Reads one worker; it knows more and more of itself while it starts.

    Attributes:
        heartbeat: Once it has joined the run.
        layout: Once it has loaded the program.
        duties: Once it leads the run.
    """

    def __init__(self, run: str, job: Job) -> None:
        self._run = run
        self._job = job
        self.heartbeat: Heartbeat | None = None
        self.layout: Layout | None = None
        self.duties: Duties | None = None

    def read(self) -> Iterator[Readings]:
        """The present values; from any thread. None before this worker has an index."""
        heartbeat = self.heartbeat
        if heartbeat is None:
            return
        told = [
            Reading(metrics.BUILD_INFO, 1, (psfleet.__version__,)),
            Reading(metrics.STEP, heartbeat.step),
            Reading(metrics.TARGET_STEP, self._job.train.steps),
            Reading(metrics.GENERATION, heartbeat.generation),
            Reading(metrics.STEP_SECONDS, heartbeat.meter.step_secs.read()),
            Reading(metrics.RECOVERY_SECONDS, heartbeat.meter.recovery_secs.read()),
        ]
        if self.layout is not None:
            told += _traffic(heartbeat, Payload.of(self._job, self.layout, heartbeat.index))
        if self.duties is not None:
            told += _duties(self.duties)
        yield Readings(self._run, self._job.fleet.role(heartbeat.index), heartbeat.index, told)


def _traffic(heartbeat: Heartbeat, payload: Payload) -> list[Reading]:
    meter = heartbeat.meter
    return [
        Reading(metrics.PUSHED_BYTES, heartbeat.pushed * payload.push),
        Reading(metrics.PULLED_BYTES, meter.pulls * payload.pull + meter.attachments * payload.attach),
    ]


def _duties(duties: Duties) -> list[Reading]:
    told = [
        Reading(metrics.RESTARTS, count, (f"{role}-{index}",))
        for (role, index), count in sorted(dict(duties.events.restarts).items())
        if count
    ]
    told.append(Reading(metrics.STEPS_LOST, duties.events.steps_lost))
    if duties.recorder.loss is not None:
        told.append(Reading(metrics.LOSS, duties.recorder.loss))
    checkpoint = duties.committer.newest
    if checkpoint is not None:
        told.append(Reading(metrics.CHECKPOINT_STEP, checkpoint.step))
        with suppress(OSError):
            written = (checkpoint.folder / MANIFEST).stat().st_mtime
            told.append(Reading(metrics.CHECKPOINT_AGE, max(0.0, time.time() - written)))
    return told
