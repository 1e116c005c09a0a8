"""What a ps remembers of one run beside its shard: the workers, and how the run ended."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

import tensorflow as tf

from ps_service.shard import Shard
from psfleet.control import control_pb2 as pb
from psfleet.control.heartbeat import ALIVE_SECS
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

LINGER_SECS = 5.0
"""How long a ps remembers a run that is over, so that each worker hears of it."""
FORGET_SECS = 60.0
"""How long a shared ps remembers a run without a shard of which nobody speaks."""


@dataclass
class Worker:
    """A worker as this ps knows it."""

    process: str = ""
    address: str = ""
    joins: int = 0
    cause: str = ""
    step: int = 0
    pushed: int = 0
    last_heard: float = field(default_factory=time.monotonic)
    left: bool = False
    attached: bool = False
    heard_outcome: bool = False

    def is_alive(self) -> bool:
        """Whether it spoke lately and did not say goodbye."""
        return not self.left and time.monotonic() - self.last_heard < ALIVE_SECS


class Run:
    """One run on this ps. Its lock guards all that changes."""

    def __init__(self, name: str, cause: str) -> None:
        self.name = name
        self.logger = RunLogger(_logger, name)
        self._cause = cause
        self.lock = threading.RLock()
        self.building = threading.Lock()
        self.shard: Shard | None = None
        self.workers: dict[int, Worker] = {}
        self.outcome: pb.Outcome | None = None
        self.last_heard = time.monotonic()
        self._slow_step = -1
        self._finished_at = 0.0

    def lease(self, request: pb.JoinRequest) -> tuple[int, int] | None:
        """Gives a worker the index that it asks for; with -1 the one that it had, or the lowest that none living has.

        Returns:
            The index and how many processes have had it; None if there is none.
        """
        with self.lock:
            index = request.index if request.index >= 0 else self._free_index(request)
            if index >= request.worker_limit:
                return None
            worker = self.workers.setdefault(index, Worker())
            worker.left, worker.last_heard, worker.address = False, time.monotonic(), request.address
            if worker.process != request.process:
                worker.process, worker.cause = request.process, request.cause
                worker.joins += 1
            return index, worker.joins

    def _free_index(self, request: pb.JoinRequest) -> int:
        """Index 0 is never leased: the chief is told that it is the chief."""
        for index, worker in self.workers.items():
            is_its_place = request.address and worker.address == request.address
            if index and (is_its_place or worker.process == request.process):
                return index
        taken = {at for at, worker in self.workers.items() if worker.is_alive()}
        return next((at for at in range(1, request.worker_limit) if at not in taken), request.worker_limit)

    def hear(self, request: pb.HeartbeatRequest) -> None:
        """Notes a worker's sign of life."""
        with self.lock:
            worker = self.workers.setdefault(request.index, Worker(joins=1))
            worker.last_heard = self.last_heard = time.monotonic()
            worker.step, worker.pushed = request.step, request.pushed
            worker.left = request.leaving
            worker.attached = request.generation >= 0
            worker.heard_outcome = self.outcome is not None

    def finish(self, outcome: pb.Outcome) -> bool:
        """Notes how the run ended; whether that was news."""
        with self.lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
            self._finished_at = time.monotonic()
            return True

    def is_over(self) -> bool:
        """Whether the run has ended and nobody is left who would ask about it."""
        with self.lock:
            if self.outcome is None:
                return False
            return self.everybody_knows() or time.monotonic() - self._finished_at > LINGER_SECS

    def is_forgotten(self) -> bool:
        """Whether nothing was ever trained, and nobody speaks who would: what a call after the end of a run leaves."""
        with self.lock:
            is_empty = self.shard is None and self.outcome is None and not self.building.locked()
            return is_empty and time.monotonic() - self.last_heard > FORGET_SECS

    def everybody_knows(self) -> bool:
        """Whether each living worker has heard how the run ended, and closed its session.

        TensorFlow waits for a peer that went away before a session was closed, for as long as it takes.
        """
        with self.lock:
            living = [worker for worker in self.workers.values() if worker.is_alive()]
            return all(worker.heard_outcome and not worker.attached for worker in living)

    def log_slow_step(self, slow_secs: float) -> None:
        """Says once for each step that waits longer than this, for whom it waits."""
        shard = self.shard
        if shard is None or self.outcome is not None or shard.step >= shard.final_step:
            return
        waited = time.monotonic() - shard.last_update
        if waited < slow_secs or shard.step == self._slow_step:
            return
        self._slow_step = shard.step
        try:
            local_steps = shard.local_steps()
        except (tf.errors.OpError, RuntimeError):
            # Closed since it was looked up: the fleet goes back to a checkpoint.
            return
        with self.lock:
            missing = [
                f"worker {index}{'' if worker.is_alive() else ' (gone)'}"
                for index, worker in sorted(self.workers.items())
                if local_steps[index] < shard.step
            ]
        extra = {"event": "slow_step", "step": shard.step, "secs": round(waited, 1)}
        self.logger.warning("step %d waits for %s", shard.step, ", ".join(missing) or "workers to join", extra=extra)

    def state(self) -> pb.ShardState:
        """As the control plane tells it."""
        with self.lock:
            state = pb.ShardState(run=self.name, phase=self._phase(), workers=self._worker_states(), cause=self._cause)
            if self.outcome is not None:
                state.outcome.CopyFrom(self.outcome)
            shard = self.shard
            if shard is None:
                return state
            plan = shard.plan
            state.generation, state.step, state.final_step = plan.generation, shard.step, shard.final_step
            state.layout_digest = plan.layout.digest()
            state.first_step = shard.first_step
            state.optimizer = plan.job.optimizer.name
            state.slots[:] = shard.slot_names
            state.model_bytes = shard.model_bytes
            state.waiting_secs = time.monotonic() - shard.last_update
            counters = shard.counters()
            state.pushed[:], state.used[:] = counters.pushed.tolist(), counters.used.tolist()
            state.staleness[:] = counters.staleness.sum(axis=0).tolist()
            for part in shard.saver.parts():
                record = part.record
                state.parts.add(
                    step=part.step,
                    error=part.error,
                    file=record.file if record else "",
                    num_bytes=record.num_bytes if record else 0,
                    sha256=record.sha256 if record else "",
                )
            return state

    def _phase(self) -> pb.Phase:
        if self.outcome is not None:
            return pb.FINISHED
        if self.shard is None:
            return pb.EMPTY
        return pb.COMPLETE if self.shard.is_complete else pb.RUNNING

    def _worker_states(self) -> list[pb.WorkerState]:
        now = time.monotonic()
        return [
            pb.WorkerState(
                index=index,
                step=worker.step,
                silent_secs=-1.0 if worker.left else now - worker.last_heard,
                pushed=worker.pushed,
                joins=worker.joins,
                cause=worker.cause,
                address=worker.address,
            )
            for index, worker in sorted(self.workers.items())
        ]
