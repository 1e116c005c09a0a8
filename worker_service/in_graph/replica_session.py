"""One replica in the session of all, in async mode, where each makes its own steps."""

from __future__ import annotations

import numpy as np

from worker_service.batch_reader import Batch
from worker_service.batches import BatchNumbers
from worker_service.in_graph.merged import ReplicaStep
from worker_service.session import CLOSE_SECS, WorkerSession
from worker_service.session_start import SessionStart


class ReplicaSession(WorkerSession):
    """A view of the chief's session for the replica of another worker; see `WorkerSession`.

    Args of the constructor:
        whole: The chief's session, which opens and closes.
        step: Of the replica.
        index: Of its worker.
    """

    def __init__(self, whole: WorkerSession, step: ReplicaStep, index: int) -> None:
        vars(self).update(vars(whole))
        self._whole = whole
        self._step, self._index = step, index
        self._watch = self._sessions.watch()
        self._pulled = np.zeros((0, 2), np.int64)
        self.losses = {}
        self.measure_norm(False)

    def start(self) -> SessionStart:
        """Waits until the chief has opened the session, and copies the replica's tensors from the ps."""
        self._await_opened()
        return self._read(None)

    def close(self, wait_secs: float = CLOSE_SECS) -> None:
        """Closes the session of all replicas."""
        self._whole.close(wait_secs)


class LentBatches:
    """A `BatchSource` of the replica of another worker, which reads its batches itself: they have only numbers."""

    def __init__(self, numbers: BatchNumbers) -> None:
        self.numbers = numbers

    def at(self, number: int) -> Batch:
        """Nothing to feed."""
        del number
        return ()
