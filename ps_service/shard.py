"""One generation of one run's shard: applies updates in a loop, and writes checkpoint parts at the steps due."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

import tensorflow as tf

from ps_service.checkpoint_writer import CheckpointWriter
from ps_service.exchanges import admit_none
from ps_service.hold import Hold, Order
from ps_service.optimizer_state import of_optimizer, warn_of_missing
from ps_service.rate_reductions import RateReductions
from ps_service.restore import Restored
from ps_service.shard_graph import Counters, ShardGraph
from ps_service.shard_plan import ShardPlan
from ps_service.updates.final_step import last_step
from psfleet.control import MIN_STEPS_AHEAD
from psfleet.errors import BUG
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

CLOSE_SECS = 5.0
"""For the part that is written, and for the update loop, to end when a generation is closed."""
SLOW_SECS = 1.0
"""An update that waits so long for the part of an earlier checkpoint is logged."""
COUNTERS_SECS = 0.1
"""Lifetime of a reading of the counters."""


class Shard:
    """A shard in training.

    Args of the constructor:
        server: Address of this process's TensorFlow server, `grpc://host:port`.
        restored: What the shard starts from.
        on_failure: Called with a message and an exit code, on a thread of the shard, if an update cannot be applied or
            a tensor is not finite.
        is_followed: Returns whether there is a chief that fetches parts; see `CheckpointWriter`.
        admit: See `Exchanges.admit`.

    Attributes:
        writer: Of the shard's checkpoint parts.
        first_step: Global step at which the generation started.
        step: Global step of the newest update.
        final_step: Global step at which training ends: that of the job, or of a scheduled stop.
        last_update: When the newest update was applied, by `time.monotonic`.
        hold: Where training is held.
    """

    def __init__(
        self,
        server: str,
        plan: ShardPlan,
        restored: Restored,
        on_failure: Callable[[str, int], None],
        is_followed: Callable[[], bool] = lambda: False,
        admit: Callable[[ShardPlan], Callable[[], None]] = admit_none,
    ) -> None:
        self.plan, self._on_failure = plan, on_failure
        self._logger = RunLogger(_logger, plan.run)
        self._graph = ShardGraph(server, plan, restored.step, of_optimizer(restored, plan.optimizer, plan.run))
        warn_of_missing(restored, plan.optimizer, plan.run, self.slot_names)
        self.writer = CheckpointWriter(
            plan.checkpoints_root,
            plan.run,
            plan.generation,
            plan.shard,
            plan.layout,
            lambda message, exit_code: on_failure(f"ps {plan.shard}: {message}", exit_code),
            is_followed,
        )
        self._end_exchanges = admit(plan)
        self.first_step = self.step = restored.step
        self.final_step = plan.job.train.steps
        self.last_update = time.monotonic()
        self.hold = Hold(self._graph, plan.hold_at)
        self._scheduled: set[int] = set()
        self._reductions, self._num_reductions = RateReductions(plan.reductions), 0
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._counters: tuple[float, Counters | None] = (0.0, None)
        self._closing = threading.Event()
        if self.step == plan.hold_at:
            # No update follows, after which a part would be written: a stop, or a save, finds this one.
            self._save(self.step)
        self._thread = threading.Thread(target=self._loop, name=f"shard-{plan.generation}", daemon=True)
        self._thread.start()

    @property
    def is_complete(self) -> bool:
        """Whether the final step is applied, and its part is written or will never be."""
        return self.step >= self.final_step and self.writer.has_ended(self.step)

    @property
    def last_step(self) -> int:
        """The step at which workers leave: the final one, or that at which training is held before."""
        return last_step(self.final_step, self.hold.at)

    @property
    def slot_names(self) -> list[str]:
        """Names of the optimizer's slots."""
        return self._graph.slot_names

    def counters(self) -> Counters:
        """Counts since the generation started: at most `COUNTERS_SECS` old before the last step, and exact after it.

        Every scrape and every `Describe` asks for them, and a run of the session costs as much as a small update.
        """
        with self._counting:
            read_at, counters = self._counters
            now = time.monotonic()
            if counters is None or self.is_complete or now - read_at > COUNTERS_SECS:
                counters = self._graph.counters()
                self._counters = now, counters
            return counters

    @property
    def model_bytes(self) -> int:
        """Bytes of the model on this ps."""
        return self._graph.model_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's slots on this ps."""
        return self._graph.optimizer_bytes

    def set_present(self, workers: Collection[int]) -> None:
        """No worker waits for others than these; see `Updates.set_present`."""
        try:
            self._graph.updates.set_present(workers)
        except (tf.errors.OpError, RuntimeError) as error:
            # The shard was closed meanwhile: the fleet restores a checkpoint.
            self._logger.debug("generation %d has ended: %s", self.plan.generation, error)

    def local_steps(self) -> list[int]:
        """See `ShardGraph.local_steps`."""
        return self._graph.local_steps()

    def schedule_checkpoint(self, step: int, stop: bool) -> bool:
        """Schedules a checkpoint, and with `stop` the end of training, at a step; returns False if it is too late."""
        with self._lock:
            held = self.last_step
            if stop and held == self.hold.at and self.step <= held <= min(step, self.plan.job.train.steps - 1):
                # The workers leave there anyway, on every ps, and the part is due; also if the end is there already.
                self.final_step = held
                return True
            if step < self.step + MIN_STEPS_AHEAD:
                return False
            # The job's last step ends training and has a checkpoint anyway. An earlier stop, which other ps have
            # refused, must be undone all the same.
            step = min(step, self.plan.job.train.steps)
            if step == self.final_step:
                return True
            # Under the lock: until it is released, the update loop makes no step beyond the one in progress.
            if stop and not self.hold.move_end(self.final_step, step):
                return False
            self._scheduled.add(step)
            if stop:
                self.final_step = step
        return True

    def schedule_hold(self, step: int | None, order: Order) -> bool:
        """Sets the step at which training is held, or continues it with None; see `Hold.schedule`."""
        with self._lock:
            return self.hold.schedule(step, order, self.step, self.final_step)

    def schedule_reductions(self, steps: Sequence[int], pause_at: int | None, order: tuple[int, int]) -> bool:
        """Sets the steps from which on the learning rate is reduced; see `RateReductions.schedule`."""
        with self._lock:
            return self._reductions.schedule(steps, pause_at, order, self.step)

    @property
    def is_paused(self) -> bool:
        """Whether updates wait for the chief to decide from which step on the learning rate is reduced."""
        return self._reductions.pauses_at(self.step)

    def close(self) -> None:
        """Ends the loop and drops the shard's resources; raises an error of one of them once all else is done."""
        self._closing.set()
        with ExitStack() as ends:
            ends.callback(self.writer.close)
            ends.callback(self._await_loop)
            ends.callback(self._end_exchanges)
            ends.callback(self._graph.close)
            self._reductions.close()
            self.writer.stop()
            self.writer.await_turn(CLOSE_SECS)

    def _await_loop(self) -> None:
        self._thread.join(CLOSE_SECS)
        if self._thread.is_alive():
            text = "the update loop of generation %d did not end within %g s; its thread is abandoned"
            self._logger.warning(text, self.plan.generation, CLOSE_SECS)

    def _loop(self) -> None:
        try:
            while not self._closing.is_set():
                self._advance()
        except Exception as error:
            # Any error: without this thread the fleet would wait forever for the next step.
            if not self._closing.is_set():
                self._logger.exception("update %d failed", self.step + 1, extra={"step": self.step})
                reason = error.message if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {error}"
                self._on_failure(f"ps {self.plan.shard}: update {self.step + 1} failed: {reason}", BUG)

    def _advance(self) -> None:
        """Waits for one update, or in async mode one dropped gradient."""
        num_reductions = self._reductions.await_number(self.step)
        if num_reductions != self._num_reductions:
            self._graph.base_rate.reduce(num_reductions)
            self._num_reductions = num_reductions
        with self._lock:
            hold = self._is_due(self.plan.job.update.next_step(self.step))
        step = self._graph.updates.advance(hold)
        if step == self.step:
            return
        self.last_update = time.monotonic()
        with self._lock:
            self.step = step
            due = self._is_due(step)
            self._scheduled = {step_ for step_ in self._scheduled if step_ > step}
        if due:
            self._save(step)
        if hold:
            self._graph.updates.release_barrier()

    def _save(self, step: int) -> None:
        """Copies the shard within TensorFlow; it is read and written on another thread.

        At most one copy waits for the part before it. If a third checkpoint is due meanwhile, this update waits: a step
        that one ps skips would be missing from every checkpoint, whatever the other ps write.
        """
        began = time.monotonic()
        self.writer.await_turn()
        if self._closing.is_set():
            return
        waited_secs = time.monotonic() - began
        if waited_secs >= SLOW_SECS:
            text = "step %d waited %.1f s: checkpoints are due faster than they are written"
            self._logger.warning(text, step, waited_secs, extra={"step": step, "event": "slow_checkpoints"})
        self._graph.take_snapshot()
        self.writer.save(step, self._graph.read_snapshot, is_final=lambda: step >= self.last_step)

    def _is_due(self, step: int) -> bool:
        return step in (self.final_step, self.hold.at) or step in self._scheduled or self.plan.has_checkpoint(step)
