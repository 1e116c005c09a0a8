"""One worker: waits for a generation, opens a session, trains, and starts over after each lost peer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np

from psfleet.control import control_pb2 as pb
from psfleet.errors import DataStallError, DeadlineError, LostPeerError, ProgramError
from worker_service.batches import Batches
from worker_service.data_ports import located
from worker_service.errands import Errands
from worker_service.fleet_state import (
    TRAINING,
    States,
    generation_of,
    has_moved_end,
    is_complete,
    is_generation_over,
    trains_past,
)
from worker_service.fleet_wait import FleetWait
from worker_service.frontends.interface import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.in_graph.merged import ReplicaStep
from worker_service.in_graph.replication import replication
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.session import WorkerSession
from worker_service.session_errors import NEVER_OF_PROGRAM, UnreachableError
from worker_service.step import StepGraph
from worker_service.training_loop import NullObserver, Observer

logger = logging.getLogger("psfleet.worker")

SAME_ERROR_LIMIT = 5
"""After so many failures in a row without a step, while every ps is healthy, the training program is at fault."""
END_SECS = 10.0
"""For which a worker waits longer for the end of a run than the chief, which knows what it waits for.

The chief waits up to `deadlines.stall_secs` until the last checkpoint is written, and as long until it can be read."""


class Worker:
    """Trains until the run is over.

    Args of the constructor:
        batches: Of this worker's shard.
        observer: Called for each step.

    Attributes:
        errands: Done by the thread that trains while the run is held.
    """

    def __init__(
        self,
        context: RunContext,
        front_end: FrontEnd,
        batches: Batches,
        heartbeat: Heartbeat,
        progress: TrainingProgress,
        observer: Observer | None = None,
    ) -> None:
        self._context = context
        self._batches = batches
        self._heartbeat = heartbeat
        self._progress = progress
        self._fleet = FleetWait(context, heartbeat)
        self._replication = replication(context, front_end, heartbeat, self._fleet)
        self._observer = observer or NullObserver()
        self.errands = Errands()
        self._graph: tuple[int, StepGraph | ReplicaStep] | None = None
        # Global step and final step of each shard after the newest last step.
        number = len(context.fleet.ps)
        self._shards = np.zeros((number, 2), np.int64)
        self._ps = f"{number} parameter server{'s' if number > 1 else ''}"
        self._failures = 0
        self._last_progress = time.monotonic()
        self._first_read_seen = -math.inf
        self._logged: set[str] = set()

    def run(self) -> pb.Outcome:
        """Trains; returns how the run ended.

        Raises:
            StoppedError: A signal stopped this worker.
            DeadlineError: The fleet did not train for the job's `deadlines.stall_secs`.
            ProgramError: The training program failed.
            BadJobError: The fleet trains another layout.
        """
        while True:
            outcome = self._heartbeat.outcome
            if outcome is not None:
                self._batches.close()
                return outcome
            generation = self.await_generation()
            if generation is not None and self.train(generation):
                self.after_final_step(generation)

    def await_generation(self) -> int | None:
        """Waits for a generation that every ps trains; None if the run is over."""
        self._log_start(f"waiting for {self._ps} to restore the model")
        found: list[int] = []

        def is_there(states: States) -> bool:
            generation = generation_of(states, self._context.layout, self._context.job_digest)
            found[:] = [] if generation is None else [generation]
            return generation is not None

        self._wait("all parameter servers to train the same generation", is_there)
        return found[0] if found else None

    def after_final_step(self, generation: int) -> None:
        """Waits until the run is over, the fleet restores a checkpoint, or a ps has got a later last step."""

        def is_over(states: States) -> bool:
            return self.is_passed(generation) or has_moved_end(states, generation, self._shards)

        with self.errands.during(is_over) as done:
            extra_secs = self._context.job.deadlines.stall_secs + END_SECS
            self._fleet.until(f"the end of the run after step {self._progress.step}", done, extra_secs)
        # A run can be held for hours.
        self._last_progress = time.monotonic()

    def is_passed(self, generation: int) -> bool:
        """Whether the fleet starts another generation, or trains beyond the step of this worker."""
        states = self._heartbeat.states
        return is_generation_over(states, generation) or trains_past(states, self._progress.step)

    def before_build(self) -> None:
        """Does nothing; a subclass may wait here before the step is built from the program."""

    def train(self, generation: int) -> bool:
        """Trains one generation; True if it reached the final step, False if a peer was lost."""
        before = self._progress.step
        try:
            self._warm_up(generation)
            self._batches.announce_first()
            graph = self._step_graph(generation)
            self._log_start(f"opening a session with {self._ps}")
            with self._replication.open(graph, generation) as session:
                self._heartbeat.attach(generation, self._interrupt(session))
                run = (generation, self._batches, self._progress, self._observer)
                self._shards = self._replication.train(session, *run)
                self._batches.report()
        except LostPeerError as error:
            if isinstance(error, UnreachableError) and self._replication.adds_to_graph:
                # The abandoned thread that opens the session holds a lock, and `await_step` changes the graph.
                self._graph = None
            self._handle_loss(error, progressed=self._progress.step > before)
            return False
        except DataStallError as error:
            error.ends_run = not self._is_left_behind()
            raise
        finally:
            self._progress.await_first_batch(False)
            self._heartbeat.detach()
        self._last_progress = time.monotonic()
        return True

    def _interrupt(self, session: WorkerSession) -> Callable[[], None]:
        """A function that ends what the training thread waits for: a batch or a step."""
        stop_reading = self._batches.interruptible()

        def interrupt() -> None:
            stop_reading()
            session.close()

        return interrupt

    def _is_left_behind(self) -> bool:
        """Whether the fleet has trained on while this worker waited for its data."""
        states = self._heartbeat.states
        return all(state is not None and state.step > self._progress.step for state in states)

    def _warm_up(self, generation: int) -> None:
        """Async: only the chief trains until the global step is `update.warmup_steps`."""
        steps = self._context.job.update.warmup_steps
        if not steps or self._context.index == 0:
            return

        what = f"the chief to make {steps} steps alone"
        # A run can be held before that, too.
        with self.errands.during(lambda states: is_generation_over(states, generation)) as is_over:
            self._fleet.until_step(steps, what, is_over)
        self._last_progress = time.monotonic()

    def _step_graph(self, generation: int) -> StepGraph | ReplicaStep:
        if self._graph is None or self._graph[0] != generation:
            # The other workers wait as long as for a first batch.
            self._progress.await_first_batch()
            self.before_build()
            self._batches.announce_first()
            self._graph = (generation, self._replication.build(generation))
        return self._graph[1]

    def _handle_loss(self, error: LostPeerError, progressed: bool) -> None:
        """Logs a lost peer; raises if this worker must not try again."""
        context, step = self._context, self._progress.step
        if self._heartbeat.outcome is not None:
            return
        if context.stop.must_leave(context.index):
            raise context.stop.error()
        if progressed:
            self._last_progress, self._failures = time.monotonic(), 0
        states = context.fleet.describe()
        is_done = is_complete(states)
        is_healthy = all(state is not None and state.phase in TRAINING for state in states)
        if is_done:
            logger.info("the fleet has made its last step without this worker, which was at step %d", step)
        else:
            self._progress.peer_lost()
            # A process that has pulled nothing yet does not know the step.
            when = f"at step {step}" if step or self._progress.pulls else "before its first step"
            logger.warning("lost a peer %s: %s", when, error, extra={"event": "lost_peer", "step": step})
        if isinstance(error, UnreachableError):
            error = located(error, context.tasks.ps) if is_healthy else error
        elif not (isinstance(error, NEVER_OF_PROGRAM) or is_done or "DeadlineExceeded" in str(error)) and is_healthy:
            self._failures += 1
        self._check_stall(error, states)
        if self._failures >= SAME_ERROR_LIMIT:
            raise ProgramError(
                f"step {step + 1} failed {self._failures} times in a row while every ps is healthy: {error}"
            ) from error

    def _check_stall(self, error: LostPeerError, states: States) -> None:
        """Raises if the fleet has stood still for too long; the time in which this worker reads does not count."""
        now, stall_secs = time.monotonic(), self._fleet.stall_secs(states)
        self._last_progress = max(self._last_progress, self._batches.wait_ended)
        if stall_secs > self._context.job.deadlines.stall_secs:
            self._first_read_seen = now
            since = self._last_progress
        else:
            since = max(self._last_progress, self._first_read_seen)
        if now - since > stall_secs:
            raise DeadlineError(f"a step after step {self._progress.step}", stall_secs, error) from error

    def _wait(self, what: str, done: Callable[[States], bool]) -> None:
        """Waits for the fleet; returns early when the run is over, raises when a signal comes."""
        self._fleet.until(what, done)

    def _log_start(self, message: str) -> None:
        """Logs what this worker is doing while it starts: once, not at every rejoin."""
        if message not in self._logged:
            self._logged.add(message)
            logger.info(message, extra={"event": "starting"})
