"""A chief without processes: its run's context, ps that answer what a test says, and states of shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.control import control_pb2 as pb
from psfleet.job.agreement import job_digest
from psfleet.job.job import Job, parse_job
from psfleet.layout import Layout
from support.checkpoint_samples import sample_layout
from worker_service.chief.events import Events
from worker_service.chief.storage import Storage
from worker_service.run_context import RunContext


def sample_job(**sections: Any) -> Job:
    """A job of 2 ps and 2 workers that ends at step 100."""
    content = {
        "name": "small",
        "program": "program:build",
        "fleet": {"ps": 2, "workers": 2},
        "optimizer": {"name": "adam", "learning_rate": 0.1},
        "train": {"steps": 100, "batch_size": 8},
    }
    return parse_job(content | sections)


def stored_job(bucket: StoreFolder, **sections: Any) -> Job:
    """That job, with its checkpoints in a store."""
    return sample_job(checkpoint={"store": f"{bucket}/run"}, **sections)


def stored_root(bucket: StoreFolder) -> StoreFolder:
    """The folder of the checkpoints of `stored_job`."""
    return bucket / "run" / "checkpoints"


class Ps:
    """A ps whose replies a test sets.

    Attributes:
        states: Replies to `describe`, the last one for ever.
        accepts: Whether it accepts a scheduled checkpoint; by step.
        scheduled: (step, stop) of each request.
        signals: Of each request.
        configured: The checkpoint folder of each Configure.
        reductions: Of the learning rate, as in the newest Configure.
        hold_at: As in the newest Configure.
    """

    def __init__(self, *states: pb.ShardState) -> None:
        self.states = list(states)
        self.accepts: Callable[[int], bool] = lambda step: True
        self.scheduled: list[tuple[int, bool]] = []
        self.signals: list[int] = []
        self.configured: list[str] = []
        self.reductions: list[int] = []
        self.hold_at: int | None = None

    def describe(self) -> pb.ShardState:
        """See PsClient."""
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def schedule_checkpoint(
        self, generation: int, step: int, stop: bool, signal_number: int = 0
    ) -> pb.ScheduleCheckpointReply:
        """See PsClient."""
        self.scheduled.append((step, stop))
        self.signals.append(signal_number)
        return pb.ScheduleCheckpointReply(accepted=self.accepts(step), step=self.states[0].step)

    def configure(
        self, *, checkpoint_folder: str, reductions: Sequence[int] = (), hold_at: int | None = None, **_: Any
    ) -> pb.ShardState:
        """See PsClient."""
        self.configured.append(checkpoint_folder)
        self.hold_at = hold_at
        self.reductions = list(reductions)
        return self.states[0]


def sample_context(
    out: Path, ps: Sequence[Ps] = (), job: Job | None = None, layout: Layout | None = None, stops: bool = False
) -> RunContext:
    """The chief's context.

    Args:
        stops: Whether a signal asks the chief to save and end the run.
    """
    fleet: Any = SimpleNamespace(ps=list(ps), describe=lambda: [one.describe() for one in ps])
    event = SimpleNamespace(is_set=lambda: stops)
    stop: Any = SimpleNamespace(must_save=lambda: stops, must_leave=lambda index: False, signal_number=15, event=event)
    tasks: Any = None
    own = job or sample_job()
    return RunContext("run", 0, 1, own, layout or sample_layout(), tasks, fleet, stop, out, job_digest=job_digest(own))


def sample_storage(context: RunContext, stall_secs: float = 1.0) -> Storage:
    """A storage with events of its own."""
    return Storage(Events(context.out, context.job), stall_secs)


def shard_state(
    step: int,
    *,
    generation: int = 1,
    phase: pb.Phase = pb.RUNNING,
    layout: Layout | None = None,
    final_step: int = 100,
    job: Job | None = None,
) -> Any:
    """The state of a ps that has a shard."""
    digest = (layout or sample_layout()).digest()
    return pb.ShardState(
        run="run",
        phase=phase,
        generation=generation,
        step=step,
        final_step=final_step,
        layout_digest=digest,
        job_digest=job_digest(job or sample_job()),
        optimizer="adam",
    )


def with_parts(state: Any, shard: int, checkpoint: Checkpoint, error: str = "") -> Any:
    """The same state after the ps has written its part of a checkpoint, or has failed to."""
    part = checkpoint.parts[shard]
    if error:
        state.parts.add(step=checkpoint.step, error=error)
    else:
        state.parts.add(step=checkpoint.step, file=part.file, num_bytes=part.num_bytes, sha256=part.sha256)
    return state


def scalars(out: Path) -> dict[str, list[float]]:
    """The values in TensorBoard's files, by tag."""
    found: dict[str, list[float]] = {}
    for path in sorted((out / "tensorboard").iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
    return found
