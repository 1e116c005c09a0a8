"""One run on a ps: its shard, and the shell with lock and clock around the fleet's view."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import tensorflow as tf

from ps_service.fleet_view import FleetView
from ps_service.only_stream import OnlyStream
from ps_service.relearning import RELEARN_SECS, Relearning
from ps_service.shard import Shard
from ps_service.shard_state import add_counters, describe
from ps_service.worker_record import CHIEF, NEVER, Member
from psfleet.control import control_pb2 as pb
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

IDLE_SECS = 60.0
"""How long a shared ps keeps a run without a shard after its last heartbeat."""
ABANDONED_SECS = 3600.0
"""The same of a run with a shard. A cluster may take many minutes to start the pods of all workers again."""


class Run:
    """One run on this ps: the fleet's view under a lock, with a clock, and the shard.

    `lock` guards what changes, and is never held during a call of TensorFlow; `building` is held while a shard is built
    or closed. `restoring` is the stream of a chief that sends a shard's content.

    Args of the constructor:
        cause: Why this ps was restarted; empty if it was not.
        started: When this ps was started, by `clock`.
        clock: Seconds; monotonic.
    """

    def __init__(
        self, name: str, cause: str, started: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.logger = RunLogger(_logger, name)
        self._cause = cause
        self._clock = clock
        self.lock = threading.RLock()
        self.building = threading.Lock()
        settled_at = started + RELEARN_SECS
        self.view = FleetView(Relearning(settled_at if cause else NEVER, settled_at))
        self.last_heartbeat = clock()
        self._shard: Shard | None = None
        self._digest = ""
        self._slow_step = -1
        self._follower = 0
        self.restoring = OnlyStream()

    @property
    def shard(self) -> Shard | None:
        """The shard of the newest generation; None before the first, and while one is built or closed."""
        with self.lock:
            return self._shard

    @property
    def outcome(self) -> pb.Outcome | None:
        """How the run ended; None while it runs."""
        with self.lock:
            return self.view.outcome

    def install(self, shard: Shard) -> None:
        """Stores a new shard."""
        digest = shard.plan.layout.digest()
        with self.lock:
            self._shard, self._digest = shard, digest
            self.view.configured(shard.plan.generation, shard.plan.job.quorum)

    def take_shard(self) -> Shard | None:
        """Removes the shard, and returns it to be closed."""
        with self.lock:
            shard, self._shard = self._shard, None
            return shard

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """See `FleetView.join`."""
        with self.lock:
            return self.view.join(request, self._clock())

    def admit_chief(self, caller: pb.Member) -> None:
        """See `FleetView.admit_chief`."""
        with self.lock:
            self.view.admit_chief(Member.of(caller), self._clock())

    def followed_by(self, caller: pb.Member) -> None:
        """Stores that this chief has called for a checkpoint's content: from now on parts wait for it."""
        with self.lock:
            self._follower = caller.incarnation

    def is_followed(self) -> bool:
        """Whether the chief is alive, and this process is the one that was last given to `followed_by`.

        A chief that has just replaced another one loads the program first: meanwhile no step waits for it.
        """
        with self.lock:
            if self.view.outcome is not None or not self._has_chief():
                return False
            return self.view.workers[CHIEF].owner.incarnation == self._follower

    def end_streams_without_chief(self) -> None:
        """Ends the streams of a chief that is not alive: nobody reads them, and each has a thread of the control plane.

        Runs that share this ps share those threads.
        """
        with self.lock:
            has_chief, shard = self._has_chief(), self._shard
        if not has_chief:
            self.restoring.end()
            if shard is not None:
                shard.writer.held.end_stream()

    def is_saving(self) -> bool:
        """Whether a chief that is alive needs this ps for a checkpoint: for its part, or after the last step."""
        with self.lock:
            has_chief, shard = self.view.outcome is None and self._has_chief(), self._shard
        return has_chief and shard is not None and (shard.step >= shard.final_step or shard.writer.is_busy)

    def _has_chief(self) -> bool:
        chief = self.view.workers.get(CHIEF)
        return chief is not None and chief.is_alive(self._clock())

    def record_heartbeat(self, request: pb.HeartbeatRequest) -> None:
        """See `FleetView.heartbeat`."""
        with self.lock:
            if self.view.heartbeat(request, self._clock()):
                self.last_heartbeat = self._clock()

    def heartbeat_reply(self, caller: int) -> pb.ShardState:
        """The reply to a heartbeat of a worker; lists all workers for one that opens sessions, the chief for others."""
        shard = self._shard
        return self.state(caller == CHIEF or (shard is not None and shard.plan.job.fleet.parts > 1), caller=caller)

    def finish(self, outcome: pb.Outcome, caller: pb.Member | None = None) -> bool:
        """Stores how the run ended; returns False if that was known already, and keeps the first outcome.

        Args:
            caller: Who ends it. A process that replaces the caller joins before, and the caller is refused, or after,
                and receives the outcome: there is no time between.

        Raises: As `FleetView.admit_finish`.
        """
        with self.lock:
            if caller is not None:
                self.view.admit_finish(Member.of(caller), self._clock())
            return self.view.finish(outcome, self._clock())

    def set_stop_signal(self, signal_number: int) -> None:
        """Stores the signal by which the present generation ends before the final step."""
        with self.lock:
            self.view.stop_signal = signal_number

    def is_over(self) -> bool:
        """See `FleetView.is_over`. False while a shard is built or closed: nothing else would close the new shard."""
        with self.lock:
            return not self.building.locked() and self.view.is_over(self._clock())

    def is_idle(self) -> bool:
        """Whether no worker is heard any more and none has ended the run; its launcher may have been killed."""
        with self.lock:
            if self.view.outcome is not None or self.building.locked():
                return False
            limit = IDLE_SECS if self._shard is None else ABANDONED_SECS
            return self._clock() - self.last_heartbeat > limit

    def all_workers_notified(self) -> bool:
        """See `FleetView.all_workers_notified`."""
        with self.lock:
            return self.view.all_workers_notified(self._clock())

    def workers(self, only_chief: bool = False) -> list[pb.WorkerState]:
        """Every worker index that has an owner, in their order."""
        with self.lock:
            now, found = self._clock(), sorted(self.view.workers.items())
            return [worker.state(now) for index, worker in found if index == CHIEF or not only_chief]

    def exclude_absent(self) -> None:
        """Has no worker wait for one that is not alive, or has no session: in ssp mode they wait for each other."""
        with self.lock:
            now, shard = self._clock(), self._shard
            present = [index for index, each in self.view.workers.items() if each.has_session and each.is_alive(now)]
        if shard is not None:
            shard.set_present(present)

    def log_slow_step(self, slow_secs: float) -> None:
        """Logs the workers that a step waits for: once for each step that waits longer than `slow_secs`."""
        shard = self.shard
        if shard is None or self.outcome is not None or shard.step >= shard.last_step:
            return
        waited = time.monotonic() - shard.last_update
        if waited < slow_secs or shard.step == self._slow_step:
            return
        self._slow_step = shard.step
        extra = {"event": "slow_step", "step": shard.step, "secs": round(waited, 1)}
        if shard.is_paused:
            text = "step %d waits for the chief to decide from which step on the learning rate is reduced"
            self.logger.warning(text, shard.step, extra=extra)
            return
        try:
            local_steps = shard.local_steps()
        except (tf.errors.OpError, RuntimeError):
            # The shard was closed meanwhile: the fleet restores a checkpoint.
            return
        missing = [
            f"worker {worker.index}{'' if worker.is_alive else ' (gone)'}"
            for worker in self.workers()
            if worker.index < len(local_steps) and local_steps[worker.index] < shard.step
        ]
        self.logger.warning("step %d waits for %s", shard.step, ", ".join(missing) or "workers to join", extra=extra)

    def state(self, with_workers: bool = True, with_counters: bool = False, caller: int = -1) -> pb.ShardState:
        """The run's state as the control plane returns it.

        Args:
            with_workers: Whether it lists all workers, 0.5 ms for 128, or the chief.
            with_counters: Whether it holds the counts of gradients, which takes a call of TensorFlow.
            caller: Index of the worker that asks; whether it waits for its own first batch is left out.
        """
        with self.lock:
            view, shard = self.view, self._shard
            state = pb.ShardState(run=self.name, phase=self._phase(), cause=self._cause, epoch=view.epoch)
            state.reading_first_batch = view.awaits_first_batch(self._clock(), caller)
            # Also while a shard is built: the chief must not configure an older generation.
            state.generation = view.generation
            state.workers.extend(self.workers(only_chief=not with_workers))
            if view.outcome is not None:
                state.outcome.CopyFrom(view.outcome)
            if shard is None:
                return state
            state.layout_digest, state.quorum, state.stop_signal = self._digest, view.quorum, view.stop_signal
        describe(state, shard, self._clock())
        if with_counters:
            add_counters(state, shard, self.logger)
        return state

    def _phase(self) -> pb.Phase:
        if self.view.outcome is not None:
            return pb.FINISHED
        if self._shard is None:
            return pb.EMPTY
        return pb.COMPLETE if self._shard.is_complete else pb.RUNNING
