"""Async mode: the replicas of the other workers train on a thread each, in the chief's session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from psfleet.errors import LostPeerError, PsfleetError
from worker_service.batches import BatchNumbers
from worker_service.in_graph.merged import ReplicaStep
from worker_service.in_graph.replica_session import LentBatches, ReplicaSession
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.session import WorkerSession
from worker_service.training_loop import NullObserver, train_generation
from worker_service.updates import update_part


class ReplicaThreads:
    """The threads of one session.

    Args of the constructor:
        session: Of the chief; the first thread that fails closes it.
        warm_up: Waits until other replicas than the chief's may train.
    """

    def __init__(
        self,
        session: WorkerSession,
        context: RunContext,
        generation: int,
        warm_up: Callable[[int, WorkerSession], None],
    ) -> None:
        self._session = session
        self._context = context
        self._generation = generation
        self._warm_up = warm_up
        self._failures: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def start(self, steps: Sequence[ReplicaStep], numbers: Sequence[BatchNumbers]) -> None:
        """Starts a thread for each replica; it waits until the chief has opened the session.

        Args:
            steps: Of the replicas of workers 1, 2 and so on.
            numbers: Of their batches.
        """
        for index, (step, own) in enumerate(zip(steps, numbers, strict=False), start=1):
            view, batches = ReplicaSession(self._session, step, index), LentBatches(own)
            name = f"replica-{index}"
            self._threads.append(threading.Thread(target=self._run, args=(view, batches), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self, timeout_secs: float) -> None:
        """Waits for the last gradients of all replicas, which no update needs any more.

        Raises:
            Exception: What a replica has raised, other than a lost peer.
        """
        deadline = time.monotonic() + timeout_secs
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for failure in self._failures:
            if not isinstance(failure, LostPeerError):
                raise failure

    def end(self, error: PsfleetError) -> NoReturn:
        """Closes the session after an error on the chief's own thread.

        Raises:
            Exception: What ended the session: what a replica has raised before, or else `error`, with its own cause.
        """
        self._session.close(wait_secs=0.0)
        found = [*self._failures, error]
        cause = next((each for each in found if not isinstance(each, LostPeerError)), found[0])
        raise cause from (error.__cause__ if cause is error else error)

    def _run(self, session: ReplicaSession, batches: LentBatches) -> None:
        part = update_part(self._context.job)
        try:
            self._warm_up(self._generation, session)
            while True:
                try:
                    train_generation(session, self._generation, part, batches, TrainingProgress(), NullObserver())
                    return
                except LostPeerError as error:
                    # A worker whose data are slow holds up its own replica only.
                    if "DeadlineExceeded" not in str(error) or session.closed.is_set():
                        raise
        except Exception as error:
            # Any error is raised again on the chief's own thread, which would otherwise train on alone.
            self._failures.append(error)
            session.close(wait_secs=0.0)
