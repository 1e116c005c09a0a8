"""How the replicas of a run are spread over graphs and clients: each worker is a client with a graph of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from worker_service.batches import Batches
from worker_service.fleet_wait import FleetWait
from worker_service.frontends.interface import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.in_graph.lent_workers import LentWorkers
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.session import WorkerSession
from worker_service.step import StepGraph
from worker_service.towers import divided
from worker_service.training_loop import Observer, train_generation
from worker_service.updates import update_part

if TYPE_CHECKING:
    from worker_service.in_graph.merged import ReplicaStep


class BetweenGraph:
    """Between-graph replication, and what a chief does otherwise with in-graph replication.

    Attributes:
        adds_to_graph: Whether operations are added to a graph after it was built.
    """

    adds_to_graph = True

    def __init__(self, context: RunContext, front_end: FrontEnd, heartbeat: Heartbeat, fleet: FleetWait) -> None:
        self._context = context
        self._front_end = front_end
        parts = context.job.fleet.tasks_of(context.index)[1:]
        self._lent = LentWorkers(context, parts, heartbeat, fleet)

    def build(self, generation: int) -> StepGraph | ReplicaStep:
        """The graph of a generation."""
        return self._build_one(self._front_end, self._context.index, generation)

    def open(self, graph: StepGraph | ReplicaStep, generation: int) -> WorkerSession:
        """A session with a graph, not yet started.

        Waits for all workers in it first, because TensorFlow waits for an absent one for minutes.
        """
        context, peers = self._context, self._lent.ready(generation)
        return WorkerSession(graph, context.job, context.tasks.ps, context.tasks.own, context.index, peers)

    def train(
        self,
        session: WorkerSession,
        generation: int,
        batches: Batches,
        progress: TrainingProgress,
        observer: Observer,
    ) -> np.ndarray:
        """See `train_generation`."""
        return train_generation(session, generation, update_part(self._context.job), batches, progress, observer)

    def _build_one(self, front_end: FrontEnd, index: int, generation: int) -> StepGraph:
        context = self._context
        step = divided(front_end, index, context.job.fleet.worker_limit, context.towers)
        return StepGraph(step, context.job, context.layout, index, context.run, generation, context.update)
