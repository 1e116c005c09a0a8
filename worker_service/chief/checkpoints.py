"""Makes whole checkpoints out of the parts that the ps have written, and plans those that time or a signal asks for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, write_manifest
from psfleet.checkpoint.parts import PartRecord
from psfleet.checkpoint.store import newest, prune
from psfleet.control import control_pb2 as pb
from psfleet.control.client import FleetClient
from psfleet.errors import LostPeerError, NoCheckpointError
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.service.process import Stop
from worker_service.fleet_state import TRAINING, States

logger = logging.getLogger("psfleet.chief")

CUT_AHEAD_SECS = 0.5
"""A cut is planned so far ahead that every ps still has it before it."""


class CheckpointCommitter:
    """Looks at the states of the ps after each beat of the pulse."""

    def __init__(
        self, fleet: FleetClient, job: Job, layout: Layout, run: str, root: Path, extra: dict[str, Any], stop: Stop
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._layout = layout
        self._run = run
        self._root = root
        self._extra = extra
        self._stop = stop
        self._stop_planned_in: int | None = None
        self._last_cut = time.monotonic()
        self._last_progress = (time.monotonic(), 0)
        self._failed: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self.newest: Checkpoint | None = None

    def look(self, states: States) -> None:
        """Commits what is whole, and plans what is due; from any thread."""
        with self._lock:
            self._look(states)

    def _look(self, states: States) -> None:
        together = [state for state in states if state is not None and state.phase in TRAINING]
        if len(together) < len(states) or len({state.generation for state in together}) != 1:
            return
        self._commit(together)
        every_secs = self._job.checkpoint.every_secs
        generation = together[0].generation
        must_stop = self._stop.must_save() and self._stop_planned_in != generation
        is_due = every_secs is not None and time.monotonic() - self._last_cut >= every_secs
        if must_stop and self._cut(together, stop=True):
            self._stop_planned_in = generation
        elif is_due and self._cut(together, stop=False):
            self._last_cut = time.monotonic()

    def error(self, states: States, step: int) -> str:
        """Why a ps could not write its part of a step; empty if it could."""
        parts = [part for state in states if state is not None for part in state.parts if part.step == step]
        return next((part.error for part in parts if part.error), "")

    def _commit(self, states: Sequence[pb.ShardState]) -> None:
        """Writes the manifest of each step of which all parts are there."""
        generation = states[0].generation
        if self.newest is None:
            self.newest = newest(self._root)
        written = [{part.step: part for part in state.parts if not part.error} for state in states]
        done = self.newest.step if self.newest and self.newest.generation == generation else -1
        for step in sorted(set.intersection(*[set(parts) for parts in written])):
            if step > done and (generation, step) not in self._failed:
                self._write(states[0], step, [parts[step] for parts in written])

    def _write(self, state: pb.ShardState, step: int, parts: Sequence[pb.SavedPart]) -> None:
        try:
            self.newest = write_manifest(
                checkpoint_folder(self._root, step, state.generation),
                self._layout,
                [PartRecord(part.file, part.num_bytes, part.sha256) for part in parts],
                run=self._run,
                step=step,
                generation=state.generation,
                optimizer=state.optimizer,
                slots=list(state.slots),
                extra=self._extra,
            )
            prune(self._root, self._job.checkpoint.keep)
        except (OSError, NoCheckpointError) as error:
            self._failed.add((state.generation, step))
            logger.error(
                "no checkpoint at step %d: %s", step, error, extra={"event": "checkpoint_failed", "step": step}
            )
        else:
            logger.info("checkpoint at step %d", step, extra={"event": "checkpoint", "step": step})

    def _cut(self, states: Sequence[pb.ShardState], stop: bool) -> bool:
        """Plans a checkpoint on every ps at one step; whether all agreed. It is tried again with the next beat."""
        step = max(state.step for state in states) + self._steps_ahead(states)
        accepted = True
        for client in self._fleet.ps:
            try:
                accepted = client.schedule_checkpoint(states[0].generation, step, stop).accepted and accepted
            except LostPeerError:
                return False
        if accepted:
            logger.info("%s at step %d", "stop" if stop else "checkpoint planned", step, extra={"step": step})
        return accepted

    def _steps_ahead(self, states: Sequence[pb.ShardState]) -> int:
        """The steps that pass in `CUT_AHEAD_SECS` at the present pace, and two more."""
        now, step = time.monotonic(), states[0].step
        before, step_before = self._last_progress
        self._last_progress = (now, step)
        pace = max(0, step - step_before) / max(now - before, 0.1)
        return 3 + int(pace * CUT_AHEAD_SECS)
