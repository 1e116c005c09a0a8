"""Brings every ps to one generation: attaches to the running one, or restores a checkpoint into a new one."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint import committed
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.read_errors import UnreadableError
from psfleet.checkpoint.store import committed_checkpoints, require_within, write_initial
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.stored_run import newest_settled, next_generation, require_job
from psfleet.checkpoint.tensors import check_tensors
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.errors import StorageError, StoreAwayError
from psfleet.report.history import History, Point
from worker_service.chief.events import Events
from worker_service.chief.holding import Holding
from worker_service.chief.monitor import Monitor
from worker_service.chief.readable import require_access
from worker_service.chief.recovery_log import RecoveryLog
from worker_service.chief.shard_content import sending
from worker_service.fleet_state import generation_of
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")


@dataclass(frozen=True)
class RecoveryResult:
    """The fleet's generation, and the step at which it began.

    If the run is over already, `finished` is the checkpoint of the final step, and `first_step` is that step.
    """

    generation: int
    first_step: int
    finished: Checkpoint | None = None


class Recovery:
    """Configures the ps at the start of a run and after each loss.

    Args of the constructor:
        initial_values: Returns every named tensor at step 0.
        manifest_extra: What the manifest holds in addition to the tensors.
        monitor: Knows whether training ends early; None: it does not.
        holding: Knows where the run is held; None: nowhere.
        started: When this attempt of the run started, in seconds since 1970.
    """

    def __init__(
        self,
        context: RunContext,
        initial_values: Callable[[], dict[str, np.ndarray]],
        manifest_extra: dict[str, Any],
        events: Events,
        monitor: Monitor | None = None,
        holding: Holding | None = None,
        started: float = math.inf,
    ) -> None:
        self._context = context
        self._started = started
        self._job = context.job
        self._layout = context.layout
        self._root = context.checkpoints_root
        self._initial_values = initial_values
        self._extra = manifest_extra
        self._events = events
        self._monitor = monitor
        self._holding = holding or Holding(context.out, events.disk, context.job.update)
        self._completed = 0
        self._log = RecoveryLog(context, events, manifest_extra)

    def recover(self, states: Sequence[pb.ShardState], last_step: int) -> RecoveryResult:
        """Brings every ps to one generation: `holding.lock` is held, so that no call replaces a checkpoint meanwhile.

        Args:
            states: Of every ps; all can be reached.
            last_step: The highest step that this process has seen.

        Raises:
            BadJobError: A ps, or the checkpoint, does not match the job.
            NoCheckpointError: There are checkpoints, but none is complete; or a committed one was deleted.
            LostPeerError: A ps was lost meanwhile.
            StoreAwayError: The store, or the disk, does not give the checkpoints for the moment.
            StorageError: The initial checkpoint cannot be written.
        """
        try:
            with self._holding.lock:
                return self._recover(states, last_step)
        except (StoreError, UnreadableError) as error:
            require_access(error)
            raise StoreAwayError(str(error)) from error

    def _recover(self, states: Sequence[pb.ShardState], last_step: int) -> RecoveryResult:
        self._context.require_lease()
        disk = self._events.disk
        generation = generation_of(states, self._layout, self._context.job_digest)
        if generation is not None and not self._is_superseded(generation):
            self._completed = generation
            return RecoveryResult(generation, states[0].first_step)
        trained = max([last_step, *[state.step for state in states]])
        with disk.reading(self._root):
            checkpoint = newest_settled(self._root)
            point = self._last_point(decides=checkpoint is None)
            known = max(trained, point.step) if checkpoint is None and point is not None else trained
            committed.require_nothing_deleted(self._context.out, self._root, checkpoint, known)
        if checkpoint is not None:
            require_job(checkpoint, self._job)
            require_within(checkpoint, self._job.train.steps)
        final_step = self._job.train.steps if self._monitor is None else self._monitor.final_step
        if checkpoint is not None and checkpoint.step >= final_step:
            with disk.reading(checkpoint.folder):
                check_tensors(checkpoint, self._layout)
            return RecoveryResult(checkpoint.generation, checkpoint.step, finished=checkpoint)
        before = [state.generation for state in states]
        recorded = [each.generation for each in (checkpoint, point) if each is not None]
        generation = 1 + max([*before, *recorded])
        with disk.reading(self._root):
            generation = next_generation(self._root, generation)
        if checkpoint is None:
            with disk.writing(self._root):
                # A ps that is held at step 0 writes a part of it, which must not replace that of the initial one.
                checkpoint = self._write_initial(generation - (self._holding.record is not None))
        trained_in = max([point.generation if point else 0, checkpoint.generation, self._completed])
        if point is not None and point.time >= self._started and point.generation >= checkpoint.generation:
            # If all ps and the chief were lost at once, nothing else knows what was trained.
            trained = max(trained, point.step)
        self._log.record(states, checkpoint, trained, generation, trained_in)
        reductions = [] if self._monitor is None else self._monitor.reductions.settled()
        hold_at = self._holding.of_generation(checkpoint.step)
        with ThreadPoolExecutor(len(states)) as pool:
            calls = [
                pool.submit(self._configure, client, shard, generation, checkpoint, reductions, hold_at)
                for shard, client in enumerate(self._context.fleet.ps)
            ]
        for call in calls:
            call.result()
        self._completed = generation
        return RecoveryResult(generation, checkpoint.step)

    def _is_superseded(self, generation: int) -> bool:
        """Whether weights were set: there is a checkpoint for a later generation than that which the fleet trains."""
        with self._events.disk.reading(self._root):
            return any(found.generation > generation for found in committed_checkpoints(self._root))

    def _last_point(self, decides: bool) -> Point | None:
        """The newest point in the run's history, which earlier runs in the folder wrote too; see `JsonLines`.

        Args:
            decides: Whether it decides that training starts at step 0.
        """
        history = History(self._context.out / History.FILE_NAME)
        if not decides:
            return history.last()
        newest: Point | None = None
        for point in history.stream():
            newest = point
        return newest

    def _configure(
        self,
        client: PsClient,
        shard: int,
        generation: int,
        checkpoint: Checkpoint,
        reductions: Sequence[int],
        hold_at: int | None,
    ) -> pb.ShardState:
        update, is_shared = self._context.update, self._context.is_shared
        plan: dict[str, Any] = {
            "shard": shard,
            "generation": generation,
            "job_json": self._job.model_dump_json(),
            "layout": self._layout,
            "checkpoint_folder": str(checkpoint.folder) if is_shared else "",
            "checkpoints_root": str(self._root) if is_shared else "",
            "timeout_secs": self._job.deadlines.start_secs,
            "update_json": update.to_json() if update is not None else "",
            "reductions": reductions,
            "hold_at": hold_at,
            "job_digest": self._context.job_digest,
        }
        if is_shared:
            return client.configure(**plan)
        with sending(checkpoint, self._layout, shard, self._events.disk) as content:
            return client.restore(origin=content.origin, ranges=content.ranges, **plan)

    def _write_initial(self, generation: int) -> Checkpoint:
        logger.info("writing the initial checkpoint", extra={"event": "starting", "step": 0})
        try:
            if isinstance(self._root, Path):
                self._root.mkdir(parents=True, exist_ok=True)
            return write_initial(
                self._root,
                self._layout,
                self._initial_values(),
                run=self._context.run,
                generation=generation,
                optimizer=self._context.optimizer,
                extra=self._extra,
            )
        except StoreError:
            raise
        except OSError as error:
            raise StorageError(f"cannot write a checkpoint into {self._root}: {error.strerror or error}") from error
