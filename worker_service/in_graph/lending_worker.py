"""A worker that lends its device to a client, and builds no step: for a replica whose data it reads, or for a part."""

from __future__ import annotations

import sys

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, DataStallError
from psfleet.job.job import Job
from worker_service.batches import Batches
from worker_service.fleet_state import States, is_complete, is_generation_over, is_held
from worker_service.frontends.interface import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.in_graph.batch_function import BatchFunction
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.worker import Worker


def lent_batches(job: Job, index: int) -> BatchFunction | None:
    """The function that the chief calls for the batches of a worker; None if the chief gets none from it.

    Raises:
        BadJobError: See `is_part`.
    """
    if index == 0 or not job.update.is_in_graph or is_part(job, index):
        return None
    return BatchFunction(job.train.accumulate)


def is_part(job: Job, index: int) -> bool:
    """Whether a worker is a part other than the first of a replica.

    Raises:
        BadJobError: The worker was added to a run whose graphs have nothing for it.
    """
    has_place = job.update.is_in_graph or job.fleet.parts > 1
    if has_place and index >= job.fleet.processes:
        raise BadJobError(
            f"worker {index} was added to a fleet of {job.fleet.processes} workers, expected no more with "
            "update.replication in_graph or fleet.parts: graphs are built for the workers of the job"
        )
    return job.fleet.parts > 1 and index >= job.fleet.replicas


def peers(job: Job, index: int) -> list[int]:
    """The workers whose tensors a worker that lends its device gets: of its replica, and with in-graph the chief."""
    clients = {0} if job.update.is_in_graph else set()
    own = set(job.fleet.tasks_of(index % job.fleet.replicas))
    return sorted((clients | own) - {index})


class LendingWorker(Worker):
    """A worker other than the chief with in-graph replication, or a part other than the first of a replica.

    Args of the constructor:
        function: That the chief's graph calls for batches; None: this worker is a part.
    """

    def __init__(
        self,
        context: RunContext,
        front_end: FrontEnd,
        batches: Batches,
        heartbeat: Heartbeat,
        progress: TrainingProgress,
        function: BatchFunction | None,
    ) -> None:
        super().__init__(context, front_end, batches, heartbeat, progress)
        self._function = function
        self._peers = peers(context.job, context.index)
        self._met: dict[int, str] = {}
        if function is not None:
            function.bind(batches, progress, self._step_of)

    def run(self) -> pb.Outcome:
        """See `Worker`. No client opens a session with this worker until it can reach those whose tensors it gets."""
        names = ", ".join(map(str, self._peers))
        self._fleet.until(f"workers {names} to join", self._meet_peers)
        self._progress.await_first_batch(False)
        return super().run()

    def _meet_peers(self, states: States) -> bool:
        """Makes the peers reachable, also one that has come back at another address; False if one is not there yet."""
        workers = () if states[0] is None else states[0].workers
        for worker in workers:
            if worker.index in self._peers and worker.address != self._met.get(worker.index, ""):
                self._context.tasks.meet(self._context.run, worker.index, worker.address)
                self._met[worker.index] = worker.address
        return len(self._met) == len(self._peers)

    def train(self, generation: int) -> bool:
        """Waits while the chief trains a generation; False when it is over, or the run. See `Worker`."""

        def is_over(states: States) -> bool:
            if self._function is not None:
                self._function.check()
            self._meet_peers(states)
            if is_held(states) and (step := self._step_of_fleet()) > self._progress.step:
                # An errand in a held run begins with the batch of the next step.
                self._progress.step_awaited(step)
            if is_complete(states) and (step := self._step_of_fleet()) > self._progress.step:
                # At once, with another heartbeat: the chief waits until all workers are at the last step.
                self._progress.step_awaited(step)
                self._heartbeat.detach()
            if self._function is None:
                self._progress.follow(self._step_of_fleet())
            return is_generation_over(states, generation)

        self._log_start(f"lending this worker's device {self._purpose}")
        try:
            with self.errands.during(is_over) as done:
                self._fleet.until_step(sys.maxsize, "the chief to make steps", done)
        except DataStallError as error:
            error.ends_run = not self._is_left_behind()
            raise
        return False

    @property
    def _purpose(self) -> str:
        if self._function is not None:
            return "to the chief"
        part, replica = divmod(self._context.index, self._context.job.fleet.replicas)
        return f"to worker {replica} as part {part} of its replica"

    def _step_of(self, number: int) -> int:
        """The global step at which the batch of a number is used: about, in async mode."""
        if self._context.job.update.has_quorum:
            return number
        return max(self._progress.step, self._step_of_fleet())

    def _step_of_fleet(self) -> int:
        """The lowest global step of the shards; 0 if a ps does not answer."""
        return min(0 if state is None else state.step for state in self._heartbeat.states)
