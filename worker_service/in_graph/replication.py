"""The chief as the client of all replicas: one graph, one session; in async mode one thread for each replica."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psfleet.errors import PsfleetError
from worker_service.batches import Batches, BatchNumbers
from worker_service.fleet_state import States, is_generation_over
from worker_service.fleet_wait import FleetWait
from worker_service.frontends.interface import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.in_graph.lent_workers import LentWorkers
from worker_service.in_graph.merged import ReplicaStep, merged
from worker_service.in_graph.replica_threads import ReplicaThreads
from worker_service.progress import TrainingProgress
from worker_service.replication import BetweenGraph
from worker_service.run_context import RunContext
from worker_service.session import CLOSE_SECS, WorkerSession
from worker_service.step import StepGraph
from worker_service.training_loop import Observer


def replication(context: RunContext, front_end: FrontEnd, heartbeat: Heartbeat, fleet: FleetWait) -> BetweenGraph:
    """That of the job."""
    if context.job.update.is_in_graph:
        return InGraph(context, front_end, heartbeat, fleet)
    return BetweenGraph(context, front_end, heartbeat, fleet)


class InGraph(BetweenGraph):
    """In-graph replication; only the chief calls it."""

    adds_to_graph = False

    def __init__(self, context: RunContext, front_end: FrontEnd, heartbeat: Heartbeat, fleet: FleetWait) -> None:
        super().__init__(context, front_end, heartbeat, fleet)
        self._heartbeat = heartbeat
        self._fleet = fleet
        self._lent = LentWorkers(context, range(1, context.job.fleet.processes), heartbeat, fleet)
        self._others: Sequence[ReplicaStep] = ()
        replicas, has_quorum = context.job.fleet.replicas, context.job.update.has_quorum
        self._numbers = [BatchNumbers(has_quorum, replicas) for _ in range(1, replicas)]

    def build(self, generation: int) -> ReplicaStep:
        """See `BetweenGraph`."""
        job = self._context.job

        def build_one(index: int) -> StepGraph:
            front_end = self._front_end.of_worker(index) if index else self._front_end
            return self._build_one(front_end, index, generation)

        first, *self._others = merged(build_one, job.fleet.replicas, job.update.has_quorum, self._heartbeat.joins)
        return first

    def train(
        self,
        session: WorkerSession,
        generation: int,
        batches: Batches,
        progress: TrainingProgress,
        observer: Observer,
    ) -> np.ndarray:
        """See `BetweenGraph`."""
        threads = ReplicaThreads(session, self._context, generation, self._warm_up)
        threads.start(self._others, self._numbers)
        try:
            shards = super().train(session, generation, batches, progress, observer)
        except PsfleetError as error:
            threads.end(error)
        threads.join(CLOSE_SECS)
        return shards

    def _warm_up(self, generation: int, session: WorkerSession) -> None:
        """Async: waits until the chief's replica has made `update.warmup_steps`."""

        def is_over(states: States) -> bool:
            return session.closed.is_set() or is_generation_over(states, generation)

        if steps := self._context.job.update.warmup_steps:
            self._fleet.until_step(steps, f"the chief to make {steps} steps alone", is_over)
