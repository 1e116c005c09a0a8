"""Servicers of a worker's process: its gradient for the chief, and run control for handles on the run."""

from __future__ import annotations

from dataclasses import dataclass

from psfleet.service.settings import Settings
from worker_service.batches import Batches
from worker_service.chief.components import ChiefComponents
from worker_service.chief.run_control import ChiefServices, RunControlServicer
from worker_service.frontends import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.own_gradient import OwnGradient, WorkerControlServicer
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.worker import Worker


@dataclass(frozen=True)
class Controls:
    """The servicers of one process, which answer that it starts until they are bound; `run` is only the chief's."""

    worker: WorkerControlServicer
    run: RunControlServicer | None

    @classmethod
    def of(cls, settings: Settings) -> Controls:
        """Those of a process with these settings: only the platform makes a process the chief."""
        run = RunControlServicer(settings.run) if settings.index == 0 else None
        return cls(WorkerControlServicer(settings.run), run)

    def bind(
        self, worker: Worker, context: RunContext, front: FrontEnd, batches: Batches, progress: TrainingProgress
    ) -> None:
        """Serves a worker from now on."""
        gradient = OwnGradient(context, front, batches, progress, worker.before_build)
        self.worker.bind(gradient, worker.errands)

    def bind_chief(self, chief: Worker, context: RunContext, heartbeat: Heartbeat, components: ChiefComponents) -> None:
        """Serves the handles on a run from now on."""
        if self.run is not None:
            self.run.bind(ChiefServices.of(context, heartbeat, components, chief.errands))
