"""Commits checkpoints of which every ps has written or holds a part; schedules those due by time or by a signal."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from psfleet.checkpoint import committed
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, write_manifest
from psfleet.checkpoint.parts import NOT_FINITE, PartRecord
from psfleet.checkpoint.store import newest_committed, prune
from psfleet.checkpoint.weight_changes import kept_changes
from psfleet.control import MIN_STEPS_AHEAD
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError, NoCheckpointError
from worker_service.chief.held_parts import HeldParts
from worker_service.chief.monitor import Monitor
from worker_service.chief.storage import Storage
from worker_service.fleet_state import TRAINING, States, check_chief, have_one_end, is_held_before
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")

PART = "a checkpoint part"
MANIFEST = "the manifest of a checkpoint"
SCHEDULE_AHEAD_SECS = 0.5
"""A checkpoint is scheduled so far ahead that no ps has passed its step when the request arrives."""


class CheckpointCommitter:
    """Writes manifests and schedules checkpoints, each time with the states of all ps.

    Args of the constructor:
        manifest_extra: What the manifest holds in addition to the tensors.
        storage: Decides what happens if a part or a manifest cannot be written.
        monitor: Decides which checkpoints are kept beyond the newest, and when training ends early; None: one of its
            own.

    Attributes:
        committed_at: When this process committed the newest checkpoint (Unix time in seconds); None: it has not.
    """

    def __init__(
        self,
        context: RunContext,
        manifest_extra: dict[str, Any],
        storage: Storage,
        monitor: Monitor | None = None,
    ) -> None:
        self._context = context
        self._job = context.job
        self._root = context.checkpoints_root
        self._extra = manifest_extra
        self._storage = storage
        self._monitor = monitor or Monitor(context.out, context.job, storage)
        self._stop: tuple[int, int] | None = None
        self._last_schedule = time.monotonic()
        self._is_requested = False
        self._last_progress: tuple[float, int] | None = None
        self._steps_per_sec = 0.0
        self._lock = threading.Lock()
        self._newest: Checkpoint | None = None
        self.committed_at: float | None = None
        self._held = HeldParts(context, storage, PART, lambda: self.update(context.fleet.describe()))

    @property
    def newest(self) -> Checkpoint | None:
        """The newest committed checkpoint; None before the first."""
        return self._newest

    def request(self) -> None:
        """Has the next update schedule a checkpoint as soon as one can be; from any thread."""
        self._is_requested = True

    def adopt(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint that this chief has written itself for the newest one."""
        with self._lock:
            committed.write(self._context.out, checkpoint)
            self._newest = checkpoint

    def update(self, states: States) -> None:
        """Commits checkpoints that are complete, and schedules one if it is due; from any thread.

        Raises:
            ReplacedError: There is a newer chief.
        """
        check_chief(states, self._context.incarnation)
        with self._lock:
            self._update(states)

    def _update(self, states: States) -> None:
        training = [state for state in states if state is not None and state.phase in TRAINING]
        if len(training) < len(states) or len({state.generation for state in training}) != 1:
            return
        self._measure(training)
        self._record_failed_parts(training)
        self._commit(training)
        every_secs = self._job.checkpoint.every_secs
        generation = training[0].generation
        is_late = every_secs is not None and time.monotonic() - self._last_schedule >= every_secs
        step = self._job.update.due_step(max(state.step for state in training) + self._steps_ahead())
        stop_step = self._stop_step(training, step)
        if stop_step is not None and self._schedule(training, stop_step, stop=True):
            self._stop = generation, stop_step
            self._monitor.record_stop(stop_step)
        elif (is_late or self._is_requested) and self._schedule(training, step, stop=False):
            self._last_schedule, self._is_requested = time.monotonic(), False

    def _stop_step(self, states: Sequence[pb.ShardState], step: int) -> int | None:
        """The step at which training is to end, if that is to be scheduled: by a signal at once, by early stopping not
        before the step of the evaluation that decided, which a rollback can have undone: a run that is held before it
        stays held. A stop that the chief before scheduled on some ps only, because it was killed, is completed.

        Args:
            states: Of the ps, which all train one generation.
            step: The first one for which a checkpoint can be scheduled.
        """
        decision = self._monitor.decision
        due = None if decision is None else self._job.update.due_step(decision.step)
        if self._context.stop.must_save() or (due is None and not have_one_end(states)):
            wanted = step
        elif due is not None and not is_held_before(states, due):
            wanted = max(step, due)
        else:
            return None
        is_scheduled = self._stop is not None and self._stop[0] == states[0].generation and self._stop[1] <= wanted
        return None if is_scheduled or self._is_stopping(states, wanted) else wanted

    def _is_stopping(self, states: Sequence[pb.ShardState], step: int) -> bool:
        """Whether an earlier chief has scheduled the end of training at a step or before it, on every ps.

        Moved, it would have the fleet train on after its last step, when the workers only wait for the end of the run.
        """
        first = states[0].final_step
        return have_one_end(states) and first <= step and first < self._job.train.steps

    @property
    def cause(self) -> str:
        """Why a part or the manifest of the newest checkpoint cannot be written; empty if none failed."""
        return self._storage.cause(PART) or self._storage.cause(MANIFEST)

    def error(self, states: States, step: int) -> str:
        """Why a ps could not write its part of a step; empty if every ps could."""
        parts = [part for state in states if state is not None for part in state.parts if part.step == step]
        return next((part.error for part in parts if part.error), "")

    def _record_failed_parts(self, states: Sequence[pb.ShardState]) -> None:
        """Records for each ps whether its newest part could be written, which is not known of one that it holds."""
        for shard, state in enumerate(states):
            newest = next((part for part in reversed(state.parts) if not part.held), None)
            if newest is None or NOT_FINITE in newest.error:
                # One that is not finite ends the run by itself.
                continue
            if newest.error:
                self._storage.failed(PART, newest.error, "checkpoint_failed", "ps", shard)
            else:
                self._storage.written(PART, "ps", shard)

    def _commit(self, states: Sequence[pb.ShardState]) -> None:
        """Writes the manifest of each step for which every part is written; has those fetched that the ps hold."""
        generation = states[0].generation
        if self._newest is None:
            with self._storage.disk.reading(self._root):
                self._newest = newest_committed(self._root)
        written = [{part.step: part for part in state.parts if not part.error} for state in states]
        # That of a later generation replaces the one that the fleet still trains: see `adopt`.
        done = self._newest.step if self._newest and self._newest.generation >= generation else -1
        for step in sorted(set.intersection(*[set(parts) for parts in written])):
            parts = [of_ps[step] for of_ps in written]
            if step > done and self._held.are_written(states, step, parts):
                self._write(states[0], step, parts)
        newest = self._newest
        self._held.release_useless(states, newest.step if newest and newest.generation >= generation else -1)

    def _write(self, state: pb.ShardState, step: int, parts: Sequence[pb.SavedPart]) -> None:
        """Commits a checkpoint; one that cannot be committed is tried again with the next states."""
        saved = None
        with self._storage.writing(MANIFEST, "checkpoint_failed"):
            saved = self._write_manifest(state, step, parts)
            committed.write(self._context.out, saved)
        if saved is None:
            return
        self._newest, self.committed_at = saved, time.time()
        logger.info("checkpoint at step %d", step, extra={"event": "checkpoint", "step": step})
        self._monitor.committed(saved)
        self.prune()

    def prune(self) -> None:
        """Deletes checkpoints that are not to be kept."""
        with self._storage.writing("the deletion of old checkpoints", "prune_failed"):
            self._context.require_lease()
            prune(self._root, self._job.checkpoint.keep, self._monitor.protected())

    def _write_manifest(self, state: pb.ShardState, step: int, parts: Sequence[pb.SavedPart]) -> Checkpoint:
        """Writes the manifest.

        Raises:
            OSError: It cannot be written, a part is gone, or another fleet has the store.
        """
        self._context.require_lease()
        try:
            return write_manifest(
                checkpoint_folder(self._root, step, state.generation),
                self._context.layout,
                [PartRecord(part.file, part.num_bytes, part.sha256) for part in parts],
                run=self._context.run,
                step=step,
                generation=state.generation,
                optimizer=state.optimizer,
                slots=list(state.slots),
                extra={**self._extra, **kept_changes(self._newest)},
            )
        except NoCheckpointError as error:
            raise OSError(str(error)) from error

    def _schedule(self, states: Sequence[pb.ShardState], step: int, stop: bool) -> bool:
        """Schedules a checkpoint at one step on every ps; if one refuses, returns False and the next update retries."""
        # A signal by which this chief only leaves does not end the run.
        own = self._context.stop.signal_number if self._context.stop.must_save() else 0
        signal_number = own or max(state.stop_signal for state in states)
        accepted = True
        for client in self._context.fleet.ps:
            try:
                reply = client.schedule_checkpoint(states[0].generation, step, stop, signal_number if stop else 0)
                accepted = reply.accepted and accepted
            except LostPeerError:
                return False
        accepted = accepted and (not stop or have_one_end(self._context.fleet.describe()))
        if accepted:
            logger.info("%s scheduled at step %d", "stop" if stop else "checkpoint", step, extra={"step": step})
        return accepted

    def _measure(self, states: Sequence[pb.ShardState]) -> None:
        """Measures the present rate: the steps since the heartbeat before, not since the start of the run."""
        now, step = time.monotonic(), states[0].step
        if self._last_progress is not None:
            before, step_before = self._last_progress
            self._steps_per_sec = max(0, step - step_before) / max(now - before, 0.1)
        self._last_progress = (now, step)

    def _steps_ahead(self) -> int:
        """The steps made in `SCHEDULE_AHEAD_SECS` at the present rate, plus the fewest that a ps accepts.

        No more than that: a stop waits for them, and a step can take seconds. Slow training stops with the step that is
        in progress.
        """
        return MIN_STEPS_AHEAD + int(self._steps_per_sec * SCHEDULE_AHEAD_SECS)
