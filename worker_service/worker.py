"""One worker from its first look at the fleet to the end of the run: agree, attach, train, and again after a loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.client import FleetClient
from psfleet.errors import DeadlineError, LostPeerError, ProgramError
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.polling import wait_until
from psfleet.service.process import Stop
from worker_service.fleet_state import States, generation_of
from worker_service.frontends.interface import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.session import WorkerSession
from worker_service.step import StepGraph
from worker_service.training_loop import Batches, NullObserver, Observer, train

logger = logging.getLogger("psfleet.worker")

SAME_ERROR_LIMIT = 5
"""A healthy fleet that fails a worker so often in a row, without one step between, is not the one at fault."""


@dataclass(frozen=True)
class TaskAddresses:
    """Where a worker stands: its run and index, its own address and those of all ps."""

    run: str
    index: int
    own: Address
    ps: tuple[Address, ...]


class Worker:
    """Trains until the run is over.

    Args of the constructor:
        batches: Of this worker's shard.
        observer: Looks at each step.
    """

    def __init__(
        self,
        place: TaskAddresses,
        job: Job,
        layout: Layout,
        front_end: FrontEnd,
        fleet: FleetClient,
        heartbeat: Heartbeat,
        stop: Stop,
        batches: Batches,
        observer: Observer | None = None,
    ) -> None:
        self._place = place
        self._job = job
        self._layout = layout
        self._front_end = front_end
        self._fleet = fleet
        self._heartbeat = heartbeat
        self._stop = stop
        self._batches = batches
        self._observer = observer or NullObserver()
        self._graph: tuple[int, StepGraph] | None = None
        self._failures = 0
        self._last_progress = time.monotonic()

    def run(self) -> pb.Outcome:
        """Trains; returns how the run ended.

        Raises:
            StoppedError: A signal asked this worker to stop.
            DeadlineError: The fleet did not train for the job's `deadlines.stall_secs`.
            ProgramError: The training program failed.
            BadJobError: The fleet trains something else.
        """
        while self._heartbeat.outcome is None:
            generation = self.agree()
            if generation is not None and self.train(generation):
                self.after_target(generation)
        return self._heartbeat.outcome

    def after_target(self, generation: int) -> None:
        """Waits until the run is over, or goes back to a checkpoint."""
        self._wait(f"the end of the run after step {self._heartbeat.step}", lambda states: self._has_news(generation))

    def agree(self) -> int | None:
        """Waits for a generation that every ps trains; None if the run is over."""
        digest = self._layout.digest()
        found: list[int] = []

        def is_there(states: States) -> bool:
            generation = generation_of(states, digest)
            found[:] = [] if generation is None else [generation]
            return generation is not None

        self._wait("all parameter servers to train the same generation", is_there)
        return found[0] if found else None

    def train(self, generation: int) -> bool:
        """Trains one generation; whether it reached the target, rather than losing a peer."""
        graph = self._step_graph(generation)
        place, job = self._place, self._job
        before = self._heartbeat.step
        try:
            self._warm_up(generation)
            with WorkerSession(graph, job, self._layout, place.ps, place.own, place.index) as session:
                self._heartbeat.interrupt = session.close
                self._heartbeat.generation = generation
                start = session.start()
                if self._batches.generation != generation:
                    self._batches.seek(generation, self._first_batch(start.global_step))
                train(session, start, job.update.mode == "sync", self._batches, self._heartbeat, self._observer)
        except LostPeerError as error:
            self._note_loss(error, progressed=self._heartbeat.step > before)
            return False
        finally:
            self._heartbeat.generation = -1
            self._heartbeat.interrupt = _nothing
            self._heartbeat.listen_afresh()
        self._last_progress = time.monotonic()
        return True

    def _first_batch(self, global_step: int) -> int:
        """The batch with which a worker goes on at a global_step: in async mode the workers share the steps."""
        return global_step if self._job.update.mode == "sync" else global_step // self._job.fleet.replicas

    def _warm_up(self, generation: int) -> None:
        """Async: leaves the first steps to the chief."""
        steps = self._job.update.warmup_steps
        if not steps or self._place.index == 0:
            return

        def is_over(states: States) -> bool:
            first = states[0]
            return self._has_news(generation) or (first is not None and first.step >= steps)

        self._wait(f"the chief to make {steps} steps alone", is_over)

    def _step_graph(self, generation: int) -> StepGraph:
        if self._graph is None or self._graph[0] != generation:
            place = self._place
            graph = StepGraph(self._front_end, self._job, self._layout, place.index, place.run, generation)
            self._graph = (generation, graph)
        return self._graph[1]

    def _has_news(self, generation: int) -> bool:
        """Whether the fleet is no longer in this generation, as far as all ps can be reached."""
        states = self._heartbeat.states
        return all(state is not None for state in states) and any(
            state is not None and state.generation != generation for state in states
        )

    def _note_loss(self, error: LostPeerError, progressed: bool) -> None:
        if self._heartbeat.outcome is not None:
            return
        if self._stop.must_leave(self._place.index):
            raise self._stop.error()
        self._heartbeat.meter.lost()
        extra = {"event": "lost_peer", "step": self._heartbeat.step}
        logger.warning("lost a peer at step %d: %s", self._heartbeat.step, error, extra=extra)
        now = time.monotonic()
        if progressed:
            self._last_progress, self._failures = now, 0
        self._failures += 1
        stall_secs = self._job.deadlines.stall_secs
        if now - self._last_progress > stall_secs:
            raise DeadlineError(f"a step after step {self._heartbeat.step}", stall_secs, error) from error
        healthy = all(state is not None and state.generation >= 0 for state in self._fleet.describe())
        if self._failures >= SAME_ERROR_LIMIT and healthy and "DeadlineExceeded" not in str(error):
            raise ProgramError(f"{self._failures} attempts at a step failed alike: {error}") from error

    def _wait(self, what: str, done: Callable[[States], bool]) -> None:
        """Waits for the fleet; returns early when the run is over, raises when a signal comes."""

        def over(states: States) -> bool:
            if self._heartbeat.outcome is not None:
                return True
            if self._stop.must_leave(self._place.index):
                raise self._stop.error()
            return done(states)

        def look() -> States:
            return self._heartbeat.states

        wait_until(look, self._job.deadlines.stall_secs, what, done=over, poll_secs=0.05)


def _nothing() -> None:
    """No step is under way."""
