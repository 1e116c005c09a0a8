"""One run on a ps, in addition to its shard: the workers, and how the run ended."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

import tensorflow as tf

from ps_service.shard import Shard
from psfleet.control import control_pb2 as pb
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

ALIVE_SECS = 5.0
"""A worker whose last heartbeat is older is not alive; it sends one each second."""
LINGER_SECS = 5.0
"""How long a ps keeps a run that is over, so that each worker receives the outcome."""
IDLE_SECS = 60.0
"""How long a shared ps keeps a run without a shard after its last heartbeat."""


@dataclass
class WorkerRecord:
    """What this ps knows of one worker index.

    Attributes:
        process: Unique for each process that has joined with the index.
        address: host:port of its TensorFlow server.
        joins: Number of processes that have joined with the index.
        cause: Why the present one was restarted; empty if it was not.
        step: Global step of its local parameters.
        pushed: Gradients that the present process has pushed.
        last_heartbeat: By `time.monotonic`.
        has_left: Whether it reported that it leaves.
        has_session: Whether it has a TensorFlow session with the fleet.
        has_outcome: Whether it has received the run's outcome.
    """

    process: str = ""
    address: str = ""
    joins: int = 0
    cause: str = ""
    step: int = 0
    pushed: int = 0
    last_heartbeat: float = field(default_factory=time.monotonic)
    has_left: bool = False
    has_session: bool = False
    has_outcome: bool = False

    def is_alive(self) -> bool:
        """Whether its last heartbeat is recent and did not say that it leaves."""
        return not self.has_left and time.monotonic() - self.last_heartbeat < ALIVE_SECS


class Run:
    """One run on this ps. `lock` guards what changes; `building` is held while a shard is built or closed."""

    def __init__(self, name: str, cause: str) -> None:
        self.name = name
        self.logger = RunLogger(_logger, name)
        self._cause = cause
        self.lock = threading.RLock()
        self.building = threading.Lock()
        self.shard: Shard | None = None
        self.workers: dict[int, WorkerRecord] = {}
        self.outcome: pb.Outcome | None = None
        self.last_heartbeat = time.monotonic()
        self._slow_step = -1
        self._finished_at = 0.0

    def lease(self, request: pb.JoinRequest) -> tuple[int, int] | None:
        """Leases the requested index; for -1 the one that the worker had, or the lowest without a live worker.

        Returns:
            The index and the number of processes that have had it; None if all are taken.
        """
        with self.lock:
            index = request.index if request.index >= 0 else self._free_index(request)
            if index >= request.worker_limit:
                return None
            worker = self.workers.setdefault(index, WorkerRecord())
            worker.has_left, worker.last_heartbeat, worker.address = False, time.monotonic(), request.address
            if worker.process != request.process:
                worker.process, worker.cause = request.process, request.cause
                worker.joins += 1
            return index, worker.joins

    def _free_index(self, request: pb.JoinRequest) -> int:
        """Never 0: the chief's index is set by the platform."""
        for index, worker in self.workers.items():
            has_its_address = request.address and worker.address == request.address
            if index and (has_its_address or worker.process == request.process):
                return index
        taken = {at for at, worker in self.workers.items() if worker.is_alive()}
        return next((at for at in range(1, request.worker_limit) if at not in taken), request.worker_limit)

    def record_heartbeat(self, request: pb.HeartbeatRequest) -> None:
        """Stores what a worker reports of itself."""
        with self.lock:
            worker = self.workers.setdefault(request.index, WorkerRecord(joins=1))
            worker.last_heartbeat = self.last_heartbeat = time.monotonic()
            worker.step, worker.pushed = request.step, request.pushed
            worker.has_left = request.leaving
            worker.has_session = request.generation >= 0
            worker.has_outcome = self.outcome is not None

    def finish(self, outcome: pb.Outcome) -> bool:
        """Stores how the run ended; returns False if that was known already, and keeps the first outcome."""
        with self.lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
            self._finished_at = time.monotonic()
            return True

    def is_over(self) -> bool:
        """Whether the run has ended and every live worker has received the outcome, or `LINGER_SECS` have passed."""
        with self.lock:
            if self.outcome is None:
                return False
            return self.all_workers_notified() or time.monotonic() - self._finished_at > LINGER_SECS

    def is_idle(self) -> bool:
        """Idle entry without a shard; can be removed. A call after the end of a run creates such an entry."""
        with self.lock:
            is_empty = self.shard is None and self.outcome is None and not self.building.locked()
            return is_empty and time.monotonic() - self.last_heartbeat > IDLE_SECS

    def all_workers_notified(self) -> bool:
        """Whether each live worker has received the outcome, and closed its session.

        A TensorFlow session that is closed after its peer has exited waits for that peer without limit.
        """
        with self.lock:
            alive = [worker for worker in self.workers.values() if worker.is_alive()]
            return all(worker.has_outcome and not worker.has_session for worker in alive)

    def log_slow_step(self, slow_secs: float) -> None:
        """Logs the workers that a step waits for: once for each step that waits longer than `slow_secs`."""
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
            # The shard was closed meanwhile: the fleet restores a checkpoint.
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
        """The run's state as the control plane returns it."""
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
            for part in shard.writer.parts():
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
        return [
            pb.WorkerState(
                index=index,
                step=worker.step,
                is_alive=worker.is_alive(),
                pushed=worker.pushed,
                joins=worker.joins,
                cause=worker.cause,
                address=worker.address,
            )
            for index, worker in sorted(self.workers.items())
        ]
