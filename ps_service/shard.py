"""One generation of one run's shard: applies updates in a loop and saves at the steps that are due."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from ps_service.checkpoint_writer import Saver
from ps_service.shard_graph import Counters, ShardGraph
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.tensors import read_shard
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.service.logs import RunLogger
from psfleet.tf import container_name

_logger = logging.getLogger("psfleet.ps")

CUT_AHEAD = 2
"""A cut must lie this many steps ahead: the next one is already under way."""
CLOSE_SECS = 5.0


@dataclass(frozen=True)
class ShardPlan:
    """What a shard is built from; two equal plans build the same shard."""

    run: str
    generation: int
    shard: int
    job: Job
    layout: Layout
    checkpoints_root: Path


class Shard:
    """A shard that is being trained.

    Args of the constructor:
        server: Address of this process's TensorFlow server, `grpc://host:port`.
        checkpoint: Where training starts from.
        on_failure: Called with a message, on the shard's own thread, if an update cannot be applied.

    Raises:
        BadJobError: The checkpoint does not fit the layout.
        NoCheckpointError: The checkpoint cannot be read.
    """

    def __init__(self, server: str, plan: ShardPlan, checkpoint: Checkpoint, on_failure: Callable[[str], None]) -> None:
        self.plan = plan
        self._logger = RunLogger(_logger, plan.run)
        self._on_failure = on_failure
        content = read_shard(checkpoint, plan.layout, plan.shard)
        if checkpoint.optimizer != plan.job.optimizer.name:
            self._logger.warning(
                "optimizer %s starts afresh: the checkpoint has %s", plan.job.optimizer.name, checkpoint.optimizer
            )
            content = replace(content, slots={}, scalars={})
        container = container_name(plan.run, plan.generation)
        self._graph = ShardGraph(server, plan.job, plan.layout, plan.shard, container, checkpoint.step, content)
        self.saver = Saver(plan.checkpoints_root, plan.run, plan.generation, plan.shard, plan.layout)
        self.first_step = self.step = checkpoint.step
        self.final_step = plan.job.train.steps
        self.last_update = time.monotonic()
        self._scheduled: set[int] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"shard-{plan.generation}", daemon=True)
        self._thread.start()

    @property
    def is_complete(self) -> bool:
        """Whether the target is reached and its part written, or could not be."""
        return self.step >= self.final_step and any(part.step == self.step for part in self.saver.parts())

    @property
    def slot_names(self) -> list[str]:
        """Names of the optimizer's slots."""
        return self._graph.slot_names

    def counters(self) -> Counters:
        """What was counted since the generation began."""
        return self._graph.counters()

    @property
    def model_bytes(self) -> int:
        """Bytes of the model on this ps."""
        return self._graph.model_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's slots on this ps."""
        return self._graph.optimizer_bytes

    def local_steps(self) -> list[int]:
        """By worker, the global_step on which its newest gradient was computed; -1 before its first."""
        return self._graph.local_steps()

    def schedule_checkpoint(self, step: int, stop: bool) -> bool:
        """Plans a checkpoint, and with `stop` the end of training, at a step; whether that was still possible."""
        with self._lock:
            if step < self.step + CUT_AHEAD:
                return False
            if step >= self.plan.job.train.steps:
                return True
            self._scheduled.add(step)
            if stop:
                self.final_step = step
        if stop:
            self._graph.set_final_step(step)
        return True

    def close(self) -> None:
        """Ends the loop and drops the shard's resources."""
        self._closing.set()
        self._graph.close()
        self._thread.join(CLOSE_SECS)
        if self._thread.is_alive():
            self._logger.warning("the update loop of generation %d is still busy", self.plan.generation)
        self.saver.close()

    def _loop(self) -> None:
        try:
            while not self._closing.is_set():
                self._advance()
        except Exception as error:
            # Whatever it is: with this thread gone the fleet would wait for a step that never comes.
            if not self._closing.is_set():
                self._logger.exception("update %d failed", self.step + 1, extra={"step": self.step})
                reason = error.message if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {error}"
                self._on_failure(f"ps {self.plan.shard}: update {self.step + 1} failed: {reason}")

    def _advance(self) -> None:
        """One update, or in async mode one gradient that was dropped."""
        with self._lock:
            hold = self._is_due(self.step + 1)
        step = self._graph.updates.advance(hold)
        if step == self.step:
            return
        self.last_update = time.monotonic()
        with self._lock:
            self.step = step
            due = self._is_due(step)
            self._scheduled = {step_ for step_ in self._scheduled if step_ > step}
        if due:
            self.saver.save(step, self._graph.snapshot())
        if hold:
            self._graph.updates.release_barrier()

    def _is_due(self, step: int) -> bool:
        every = self.plan.job.checkpoint.every_steps
        return step == self.final_step or step in self._scheduled or (every is not None and step % every == 0)
