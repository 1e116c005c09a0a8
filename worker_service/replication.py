"""How the replicas of a run are spread over graphs and clients: each worker is a client with a graph of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import psfleet
from psfleet.exchange import has_connections
from psfleet.exchange.messages import Greeting
from worker_service.batches import Batches
from worker_service.connections import Connections
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
        self._heartbeat = heartbeat
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
        connect = None if graph.connections is None else partial(self._connect, graph.connections)
        return WorkerSession(graph, context.job, context.tasks.ps, context.tasks.own, context.index, peers, connect)

    def _connect(self, connections: Connections) -> int:
        """Opens the connections of a session, at the ports that the ps report."""
        ports = [0 if state is None else state.exchange_port for state in self._heartbeat.states]
        return connections.open([client.address for client in self._context.fleet.ps], ports)

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
        return StepGraph(
            step,
            context.job,
            context.layout,
            index,
            context.run,
            generation,
            context.update,
            self._connections(generation),
        )

    def _connections(self, generation: int) -> Connections | None:
        """For the steps of a generation; None: they are exchanged by TensorFlow's servers."""
        context, job = self._context, self._context.job
        if not has_connections(job, context.layout):
            return None
        greeting = Greeting(
            version=psfleet.__version__,
            run=context.run,
            generation=generation,
            worker=context.index,
            incarnation=context.incarnation,
            session="",
            carries="pushes",
        )
        role = "worker" if job.fleet.colocate else "ps"
        return Connections(greeting, context.identity, role, job.round_secs, job.fleet.unix_sockets)
