"""Records the metrics of the training batches in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from psfleet.layout import Layout
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog
from worker_service.chief.storage import Storage
from worker_service.evaluation import Evaluator
from worker_service.session import WorkerSession

EVERY_SECS = 0.5
"""Least time between two lines of the file, after the first `NUM_FIRST` of a chief process."""
NUM_FIRST = 500
"""So that a short run has all of its metrics; the curves are drawn with about as many points."""


class TrainingMetricsRecorder:
    """Computes the metrics of the training batches, and appends them to `training_metrics.jsonl`.

    `of_step` is called on the training thread; all other methods on the thread that writes the summaries, or while that
    thread has nothing to do.

    Args of the constructor:
        evaluator: None: the program could not be loaded; nothing is recorded.

    Attributes:
        newest: By name; those of the file before the first. Empty if there is none, or if this job collects none, as in
            async and ssp mode: those of the file are then of steps that another job has trained.
    """

    def __init__(
        self,
        out: Path,
        layout: Layout,
        evaluator: Evaluator | None,
        storage: Storage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = TrainingMetricsLog(out / TrainingMetricsLog.FILE_NAME)
        self._layout = layout
        self._evaluator = evaluator
        self._storage = storage
        self._clock = clock
        self._num_written = 0
        self._written_at = float("-inf")
        self._unwritten: TrainingMetrics | None = None
        self._is_collected = not all(spec.is_saved for spec in layout.state.specs)
        recorded = self._log.last() if self._is_collected else None
        self.newest = {} if recorded is None else recorded.metrics

    def of_step(self, session: WorkerSession) -> Callable[[], dict[str, float]]:
        """Computes the metrics of this step, on any thread: see `FrontEnd.training_metrics`.

        There are none if the total and the count of one can be of different steps.
        """
        evaluator = self._evaluator
        if evaluator is None or not self._is_collected or not session.is_of_one_step:
            return dict
        state = session.state()
        return lambda: evaluator.training_metrics(self._layout.state.unpack(state))

    def record(self, global_step: int, generation: int, first_step: int, metrics: dict[str, float]) -> None:
        """Appends the metrics of a step, unless there are many lines and the newest is younger than `EVERY_SECS`.

        Args:
            first_step: At which the generation began.
        """
        if not metrics:
            return
        self.newest = metrics
        self._unwritten = TrainingMetrics(
            time=time.time(), step=global_step, generation=generation, first_step=first_step, metrics=metrics
        )
        if self._num_written < NUM_FIRST or self._clock() - self._written_at >= EVERY_SECS:
            self.flush(is_awaited=False)

    def flush(self, is_awaited: bool = True) -> None:
        """Appends the newest metrics if `record` has not.

        Args:
            is_awaited: See `Storage.writing`.
        """
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            self._num_written += 1
            self._written_at = self._clock()
            with self._storage.writing(TrainingMetricsLog.FILE_NAME, is_awaited=is_awaited):
                self._log.append(unwritten)
