"""Records recoveries: events for lost shards, a changed job and a changed program."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.control import control_pb2 as pb
from psfleet.job.differences import changes
from psfleet.job.program_files import PROGRAM_DIGEST
from worker_service.chief.events import Events
from worker_service.fleet_state import TRAINING, trains_other_job
from worker_service.run_context import RunContext

JOB_CHANGED = "job_changed"
"""Event kind: a restarted chief has another job than the ps."""

logger = logging.getLogger("psfleet.chief")


class RecoveryLog:
    """Records the events of recoveries, each once.

    Args of the constructor:
        context: Of the chief.
        events: Where they are recorded.
        manifest_extra: What the manifest holds in addition to the tensors.
    """

    def __init__(self, context: RunContext, events: Events, manifest_extra: Mapping[str, Any]) -> None:
        self._context = context
        self._events = events
        self._extra = manifest_extra

    def record(
        self, states: Sequence[pb.ShardState], checkpoint: Checkpoint, last_step: int, generation: int, trained_in: int
    ) -> None:
        """Logs the step to restore, or an event for each lost ps with the steps that the loss cost.

        A recovery that fails is tried again, by this chief or by the one that replaces it: each ps and each step is
        recorded once before a generation is complete.

        Args:
            generation: That the recovery starts.
            trained_in: The newest generation that was complete.
        """
        earlier = [event for event in self._events.all() if event.generation > trained_in]
        recorded = {event.index for event in earlier if event.kind != JOB_CHANGED}
        lost = max(0, last_step - checkpoint.step - sum(event.steps_lost for event in earlier))
        was_training = last_step > 0 or any(state.phase in TRAINING for state in states)
        if was_training:
            is_recorded = any(event.kind == JOB_CHANGED for event in earlier)
            if trains_other_job(states, self._context.job_digest) and not is_recorded:
                cause = f"the ps trained by another job{self._changed(checkpoint)}"
                self._events.add("chief", 0, JOB_CHANGED, cause, lost, generation)
                lost = 0
            for shard, state in enumerate(states):
                if state.phase not in TRAINING and shard not in recorded:
                    cause = state.cause or "lost shard state (restarted)"
                    self._events.record_loss(shard, cause, lost, generation)
                    lost = 0
        elif checkpoint.step:
            extra = {"event": "starting", "step": checkpoint.step}
            logger.info("restoring from step %d%s", checkpoint.step, self._changed(checkpoint), extra=extra)
            self._record_program_change(checkpoint)

    def _changed(self, checkpoint: Checkpoint) -> str:
        """Lists what has changed in the job since a checkpoint, as the end of a message."""
        found = changes(checkpoint.job, self._context.job)
        if checkpoint.step and checkpoint.optimizer != self._context.optimizer:
            found.append("the new optimizer starts without state")
        return f"; the job has changed: {', '.join(found)}" if found else ""

    def _record_program_change(self, checkpoint: Checkpoint) -> None:
        """Adds an event if a run resumes from a checkpoint that another program trained, which is allowed."""
        before, now = checkpoint.extra.get(PROGRAM_DIGEST), self._extra.get(PROGRAM_DIGEST)
        if before and now and before != now:
            cause = f"step {checkpoint.step} was trained by a program with digest {before}, this one has {now}"
            self._events.add("chief", 0, "program_changed", cause)
