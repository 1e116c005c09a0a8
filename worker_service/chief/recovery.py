"""Brings every ps to one generation of the run: joins the one that is there, or starts one from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import newest, write_initial
from psfleet.control import control_pb2 as pb
from psfleet.control.client import FleetClient, PsClient
from psfleet.errors import StorageError
from psfleet.job.job import Job
from psfleet.layout import Layout
from worker_service.chief.events import Events
from worker_service.fleet_state import TRAINING, generation_of

logger = logging.getLogger("psfleet.chief")


@dataclass(frozen=True)
class RecoveryResult:
    """What the fleet agreed on: a generation, or that the target's checkpoint is there already."""

    generation: int
    finished: Checkpoint | None = None


class Recovery:
    """Args of the constructor:
    root: The folder of checkpoints.
    initial_values: Every named tensor at step 0.
    extra: What the manifest keeps beside the tensors.
    """

    def __init__(
        self,
        fleet: FleetClient,
        job: Job,
        layout: Layout,
        run: str,
        root: Path,
        initial_values: Callable[[], dict[str, np.ndarray]],
        extra: dict[str, Any],
        events: Events,
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._layout = layout
        self._run = run
        self._root = root
        self._initial_values = initial_values
        self._extra = extra
        self._events = events

    def settle(self, states: Sequence[pb.ShardState], last_step: int) -> RecoveryResult:
        """Agrees with the ps on a generation.

        Args:
            states: Of every ps; all can be reached.
            last_step: The highest step that this process has seen.

        Raises:
            BadJobError: A ps, or the checkpoint, does not fit the job.
            NoCheckpointError: Checkpoints are there, but none is whole.
            LostPeerError: A ps went away meanwhile.
            StorageError: The first checkpoint cannot be written.
        """
        generation = generation_of(states, self._layout.digest())
        if generation is not None:
            return RecoveryResult(generation)
        checkpoint = newest(self._root)
        if checkpoint is not None and checkpoint.step >= self._job.train.steps:
            return RecoveryResult(checkpoint.generation, finished=checkpoint)
        before = [state.generation for state in states]
        generation = 1 + max([*before, checkpoint.generation if checkpoint else 0])
        if checkpoint is None:
            checkpoint = self._write_initial(generation)
        self._log(states, checkpoint, max([last_step, *[state.step for state in states]]))
        with ThreadPoolExecutor(len(states)) as pool:
            calls = [
                pool.submit(self._configure, client, shard, generation, checkpoint)
                for shard, client in enumerate(self._fleet.ps)
            ]
        for call in calls:
            call.result()
        return RecoveryResult(generation)

    def _configure(self, client: PsClient, shard: int, generation: int, checkpoint: Checkpoint) -> pb.ShardState:
        return client.configure(
            shard=shard,
            generation=generation,
            job_json=self._job.model_dump_json(),
            layout=self._layout,
            checkpoint_folder=str(checkpoint.folder),
            checkpoints_root=str(self._root),
            timeout_secs=self._job.deadlines.start_secs,
        )

    def _write_initial(self, generation: int) -> Checkpoint:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            return write_initial(
                self._root,
                self._layout,
                self._initial_values(),
                run=self._run,
                generation=generation,
                optimizer=self._job.optimizer.name,
                extra=self._extra,
            )
        except OSError as error:
            raise StorageError(f"cannot write a checkpoint into {self._root}: {error.strerror or error}") from error

    def _log(self, states: Sequence[pb.ShardState], checkpoint: Checkpoint, last_step: int) -> None:
        """Says where training starts, and what that costs."""
        lost = max(0, last_step - checkpoint.step)
        was_training = last_step > 0 or any(state.phase in TRAINING for state in states)
        if was_training:
            for shard, state in enumerate(states):
                if state.phase not in TRAINING:
                    self._events.add("ps", shard, "restarted", state.cause or "it forgot its shard", lost)
                    lost = 0
        elif checkpoint.step:
            logger.info("going on from step %d", checkpoint.step, extra={"step": checkpoint.step})
