"""A worker's TensorFlow session with every ps: opened, run and closed, each with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.job.job import Job
from psfleet.tf.server import cluster_config, fuse_what_runs
from worker_service.abandonment import is_abandonment
from worker_service.accumulation import microbatches
from worker_service.allowance import Allowance
from worker_service.first_pull import NEWEST, pull_one_step
from worker_service.in_graph.merged import ReplicaStep
from worker_service.session_errors import translate_errors
from worker_service.session_start import SessionStart, by_ps
from worker_service.step import StepGraph
from worker_service.step_calls import StepCalls
from worker_service.step_sessions import StepSessions

CLOSE_SECS = 2.0


class WorkerSession:
    """A session on the resources of one generation. `graph` is its graph.

    Its ClusterSpec contains every ps and this worker, and is sent with the session: no process waits for an absent
    worker, except with in-graph replication, where it contains all workers, and with several parts.

    Args of the constructor:
        peers: `host:port` of the workers that lend it their devices, by index.
        connect: Opens the connections of the step, see `Connections.open`; None: it has none.

    Attributes:
        losses: The newest loss of each by name, after its first step; the name of the only one is empty.

    Raises (from every method):
        LostPeerError: A peer cannot be reached, or a ps has lost the generation's resources.
        ProgramError: The training program failed.
    """

    def __init__(
        self,
        step: StepGraph | ReplicaStep,
        job: Job,
        ps: Sequence[Address],
        own: Address,
        index: int,
        peers: Mapping[int, str] | None = None,
        connect: Callable[[], int] | None = None,
    ) -> None:
        config = cluster_config(job, ps, step.worker_job, {index: own.data, **(peers or {})})
        fuse_what_runs(config, step.graph)
        self._step, self.graph, self._index = step, step.graph, index
        self._job = job
        self._connect = connect
        self._step_secs = job.deadlines.step_secs
        self._num_microbatches = job.train.accumulate
        self._options = v1.RunOptions(timeout_in_ms=int(self._step_secs * 1000))
        self._barrier = v1.RunOptions(timeout_in_ms=int(job.round_secs * 1000))
        self._sessions = StepSessions(f"grpc://{own.data}", step, job, config, self._options)
        self._watch = self._sessions.watch()
        self._closing, self.closed = threading.Lock(), threading.Event()
        self._pulled = np.zeros((0, 2), np.int64)
        self._wants_norm, self._allowance = True, Allowance()
        self._number = 0
        self.losses: dict[str, float] = {}

    @property
    def is_of_one_step(self) -> bool:
        """Whether the newest step of `train` pulled all segments at the same step; with spares, one can be ahead."""
        return len(set(self._pulled[:, 0].tolist())) == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After a loss the peer cannot answer, and the rest of the fleet waits for this worker.
        self.close(wait_secs=0.0 if isinstance(error, LostPeerError) else CLOSE_SECS)

    def start(self) -> SessionStart:
        """Opens the session, and copies all tensors from the ps."""
        self._sessions.open()
        return self._read(self._await_opened())

    def _await_opened(self) -> np.ndarray:
        """What the first call has returned."""
        with translate_errors():
            return self._sessions.opened(self._step_secs)

    def _read(self, shard_steps: np.ndarray | None) -> SessionStart:
        """Copies all tensors from the ps, and prepares the calls of a step."""
        step = self._step
        with translate_errors():
            if step.frozen.shape[0]:
                self._sessions.server.run(step.load_frozen, options=self._options)
            start = pull_one_step(self._sessions.server, step, self._job, self._options, shard_steps)
        number = self._begin()
        calls = self._num_microbatches, self._options, self._barrier, number
        self._calls = StepCalls(self._sessions, self._watch, step, *calls)
        return start

    def _begin(self) -> int | None:
        """Opens the session of steps, and the connections; returns their number."""
        step = self._step
        try:
            with translate_errors():
                self._sessions.begin(step.pull, *([step.load_frozen] if step.frozen.shape[0] else []))
            return None if self._connect is None else self._connect()
        finally:
            if self.closed.is_set():
                # `close` may not have seen them.
                self._free(0.0)

    def resume(self) -> SessionStart:
        """Copies parameters and state from the ps again, after a `RefusedCallError`."""
        with translate_errors():
            if self._step.abandonment is not None:
                # An abandoned step may have set its flag, with which all later ones would end, too.
                self._sessions.server.run(self._step.abandonment.taken, options=self._options)
            start = pull_one_step(self._sessions.server, self._step, self._job, self._options)
            self._sessions.take(self._step.pull)
            return start

    def train(self, batch: Sequence[np.ndarray], local_step: int, number: int) -> tuple[float | None, np.ndarray]:
        """Runs one step.

        Args:
            batch: In the order of the graph's feeds; with accumulation all microbatches, one after the other.
            local_step: The global step of the local parameters.
            number: Of the batch. A ps applies a worker's gradient of a number once.

        Returns:
            The loss of the batch, None if the step was abandoned, see `Abandonment` and `Allowance`;
            global step and final step of each shard after the step, int64 `[num_ps, 2]`.
        """
        self._number = number
        with translate_errors(f", step {local_step + 1}: ", self._index):
            try:
                may_abandon = self._allowance.begin() and self._step.abandonment is not None
                loss, self._pulled = self._calls.train(batch, local_step, number, self._wants_norm, may_abandon)
            except tf.errors.InvalidArgumentError as error:
                if self._step.abandonment is None or not is_abandonment(error):
                    raise
                self._allowance.end(was_abandoned=True)
                self._pulled = self._sessions.server.run(self._step.abandonment.taken, options=self._options)
                return None, by_ps(self._pulled, self._job.fleet.ps)
            self._allowance.end(was_abandoned=False)
            self.losses[self._step.loss_names[self._calls.loss_of(number)]] = loss
            return loss, by_ps(self._pulled, self._job.fleet.ps)

    def update_locally(self, batch: Sequence[np.ndarray], number: int) -> float:
        """Averaging mode: one update of this worker's own parameters, without the ps; returns the loss of the batch.

        Args:
            batch: As for `train`.
            number: Of the batch, which is the global step before the update.
        """
        self._number = number
        with translate_errors(f", step {number + 1}: ", self._index):
            return self._calls.update_locally(batch, number, self._wants_norm)

    def exchange(self, local_step: int) -> np.ndarray:
        """Averaging mode: pushes what the updates since `local_step` have made, and pulls; see `train`."""
        with translate_errors(f", round after step {local_step}: ", self._index):
            self._pulled = self._calls.exchange(local_step)
            return by_ps(self._pulled, self._job.fleet.ps)

    def await_step(self, local_step: int) -> np.ndarray:
        """Waits for the end of a step whose gradient is pushed already; returns what `train` does, without the loss."""
        step = self._step
        with translate_errors():
            pulled = self._sessions.server.run(step.await_step, {step.local_step: local_step}, self._barrier)
            self._sessions.take(step.await_step)
            return by_ps(np.asarray(pulled), self._job.fleet.ps)

    def summaries(self, batch: Sequence[np.ndarray]) -> bytes | None:
        """The program's own summaries of the newest batch, of its last microbatch; None if it has none."""
        step, count = self._step, self._num_microbatches
        if step.summaries is None:
            return None
        with translate_errors():
            feeds = dict(zip(step.feeds, microbatches(batch, count)[-1], strict=True))
            # Rows of tables are read for them, too.
            feeds[step.local_step] = NEWEST
            feeds |= {step.microbatch: (self._number + 1) * count - 1, step.number: self._number}
            return bytes(self._sessions.run(step.summaries, feeds, self._options))

    def measure_norm(self, is_wanted: bool) -> None:
        """Whether the next step computes the norm of a gradient that is not clipped: a pass over all its elements."""
        self._wants_norm = is_wanted

    def gradient_norm(self) -> float | None:
        """The global norm of the newest step's gradient before it was clipped; None if that step did not compute it."""
        with translate_errors():
            return self._calls.gradient_norm()

    def gradients(self) -> list[np.ndarray]:
        """See `StepGraph.gradients`."""
        with translate_errors():
            return list(self._sessions.run(self._step.gradients, options=self._options))

    def parameters(self) -> np.ndarray:
        """The local parameters, float32 `[layout.parameters.size]`."""
        with translate_errors():
            first, *others = self._sessions.run(list(self._step.parameters))
            return np.concatenate([first, *others]) if others else np.asarray(first)

    def state(self) -> np.ndarray:
        """The local copy of state, of the same step as the parameters: uint8 `[layout.state.size]`."""
        with translate_errors():
            return np.asarray(self._sessions.run(self._step.state))

    def frozen(self) -> np.ndarray:
        """The local copy of frozen weights, uint8 `[layout.frozen.size]`."""
        with translate_errors():
            return np.asarray(self._sessions.run(self._step.frozen))

    def close(self, wait_secs: float = CLOSE_SECS) -> None:
        """Cancels the running step and closes the session; from any thread, any number of times."""
        with self._closing:
            if self.closed.is_set():
                return
            self.closed.set()
        self._free(wait_secs)

    def _free(self, wait_secs: float) -> None:
        if self._step.connections is not None:
            self._step.connections.close()
        # Closing waits for the peers, forever after one died: the thread is then abandoned.
        closer = threading.Thread(target=self._sessions.close, name="close-session", daemon=True)
        closer.start()
        closer.join(wait_secs)
