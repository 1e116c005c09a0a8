"""Records the training of the chief: progress lines, history, TensorBoard, evaluations."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.job.job import Job
from psfleet.job.learning_rate import LEARNING_RATE, rates_of
from psfleet.layout import Layout
from psfleet.report.history import History, Point
from worker_service.batch_reader import Batch
from worker_service.chief.board import Board
from worker_service.chief.data_epochs import DataEpochs
from worker_service.chief.evaluation_recorder import EvaluationRecorder
from worker_service.chief.evaluations import Values
from worker_service.chief.graph_summary import GraphSummary
from worker_service.chief.monitor import Monitor
from worker_service.chief.step_summaries import StepSummaries
from worker_service.chief.storage import Storage
from worker_service.chief.worker_rates import WorkerRates
from worker_service.evaluation import Evaluator, local_values
from worker_service.session import WorkerSession

logger = logging.getLogger("psfleet.chief")

PROGRESS_SECS = 0.5
"""Least time between two progress lines."""
NEVER = 1 << 62
"""Above the steps of any run."""
REMEMBERED_STEPS = 100_000
"""Number of newest step times that the report's quantiles are computed of."""


class Recorder:
    """An `Observer` of the chief's training loop. Only the training thread calls it; metrics read `loss`.

    Evaluations and TensorBoard's file have threads of their own: see `Evaluations` and `Board`.

    Args of the constructor:
        evaluator: None: the program could not be loaded, and nothing is evaluated.
        storage: Decides what happens if a file cannot be written.
        monitor: Receives the evaluations; None: one of its own.
        trained_secs: Seconds in which earlier chiefs of the attempt have trained.

    Attributes:
        monitor: Receives the evaluations.
        loss: Of the newest step's batch; None before the first.
        losses: Of several losses, the newest of each by name.
        worker_rates: Measured by the chief's heartbeats.
        data_epochs: Collected from loaders with dynamic sharding.
    """

    def __init__(
        self,
        out: Path,
        job: Job,
        layout: Layout,
        evaluator: Evaluator | None,
        storage: Storage,
        monitor: Monitor | None = None,
        trained_secs: float = 0.0,
    ) -> None:
        self._job = job
        self._layout = layout
        self._history = History(out / History.FILE_NAME)
        self._storage = storage
        self._board = Board(out, storage)
        with storage.disk.reading(out):
            self._graph_summary = GraphSummary(self._board, job.summaries.graph, out)
            self.monitor = monitor or Monitor(out, job, storage)
            self._summaries = StepSummaries(out, job, layout, evaluator, storage, self._board)
        self._evaluation = EvaluationRecorder(job, layout, evaluator, storage, self._board, self.monitor)
        self._generation, self._first_step = 0, 0
        self._global_step = 0
        self._last = (time.perf_counter(), 0)
        self._due: dict[str, int] = {}
        self.step_secs: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self.loss: float | None = None
        self.losses: dict[str, float] = {}
        self.steps_done = 0
        self._trained_secs, self._own_secs = trained_secs, 0.0
        self.worker_rates = WorkerRates()
        self.data_epochs = DataEpochs()

    def begin(self, generation: int, first_step: int) -> None:
        """A generation, which began at a step, starts or is attached to again."""
        self._generation, self._first_step = generation, first_step
        self._evaluation.enter(generation, first_step)

    def start(self, global_step: int) -> None:
        """See `Observer`."""
        self.monitor.callbacks.start(global_step)
        self._evaluation.start(global_step)
        self._global_step = global_step
        self._last = (time.perf_counter(), global_step)
        self._due = {
            "evaluate": _next(global_step, self._job.evaluate.every_steps),
            "summaries": _next(global_step, self._job.summary_steps),
        }

    def step(self, session: WorkerSession, batch: Batch, global_step: int, loss: float, secs: float) -> None:
        """See `Observer`."""
        made = global_step - self._global_step
        if made > 0:
            self.step_secs.append(secs / made)
            self.steps_done += made
        self._own_secs += secs
        self._global_step = global_step
        self.loss = loss
        self.losses = dict(session.losses) if self._job.optimizers else {}
        self._evaluation.evaluations.check()
        self._graph_summary.write(session, global_step)
        now = time.perf_counter()
        if now - self._last[0] >= PROGRESS_SECS or global_step >= self._job.train.steps:
            self._progress(session, now, global_step, loss)
        if self._is_due("summaries", global_step, self._job.summary_steps):
            self._summarize(session, batch, global_step, loss)
        self._begin_evaluation(session, global_step)
        # The next step may take three times as long; one that is recorded after more has no norm.
        session.measure_norm(self._is_recorded(global_step + max(made, 1), now + 3 * secs))
        step_secs = secs / max(made, 1)
        rate = self._examples(1) / step_secs
        metrics = {"loss": loss, **self._named_losses(), "step_secs": step_secs, "examples_per_sec": rate}
        self.monitor.callbacks.step(global_step, metrics)

    def _named_losses(self) -> dict[str, float]:
        return {f"{name}_loss": value for name, value in self.losses.items()}

    def _is_recorded(self, global_step: int, now: float) -> bool:
        """Whether a step that ends at a time (monotonic, in seconds) has a point in the history, or summaries."""
        is_point = now - self._last[0] >= PROGRESS_SECS or global_step >= self._job.train.steps
        return is_point or global_step >= self._due["summaries"]

    @property
    def training_secs(self) -> float:
        """Seconds in which the chiefs of the attempt have trained."""
        return self._trained_secs + self._own_secs

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the newest evaluation, by name; empty before the first."""
        return self._evaluation.metrics

    def newest_training_metrics(self) -> dict[str, float]:
        """See `StepSummaries`."""
        return self._summaries.newest_training_metrics()

    def finish_evaluation(self, is_over: Callable[[], bool]) -> bool:
        """Waits for the evaluation that runs, if one does; see `Evaluations.finish_running`."""
        return self._evaluation.evaluations.finish_running(is_over)

    def evaluate(
        self, global_step: int, values: Callable[[], Values], is_over: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """See `EvaluationRecorder`."""
        return self._evaluation.evaluate(global_step, values, is_over)

    def evaluate_last(self, checkpoint: Checkpoint, is_over: Callable[[], bool]) -> bool:
        """See `EvaluationRecorder`."""
        return self._evaluation.evaluate_last(checkpoint, is_over)

    def _begin_evaluation(self, session: WorkerSession, global_step: int) -> None:
        """Begins the evaluations that are due: of checkpoints, or of this step's weights."""
        if self._job.evaluates_checkpoints:
            self._evaluation.begin_checkpoints()
        elif (
            self._is_due("evaluate", global_step, self._job.evaluate.every_steps)
            and global_step < self._job.train.steps
        ):
            self._evaluation.begin(global_step, lambda: local_values(session, self._layout))

    def close(self) -> None:
        """Flushes and closes the TensorBoard file."""
        self._board.close()

    def quantile_secs(self, quantile: float) -> float | None:
        """Quantile of the step times; None before the first step."""
        return float(np.quantile(np.array(self.step_secs), quantile)) if self.step_secs else None

    def examples_per_sec(self) -> float:
        """Examples of all workers per second, over all steps of this process."""
        return self._examples(self.steps_done) / self._own_secs if self._own_secs else 0.0

    def worker_examples_per_sec(self) -> dict[int, float]:
        """Examples of the gradients that each worker has pushed per second, by index."""
        examples = self._job.push_examples
        return {index: rate * examples for index, rate in self.worker_rates.gradients_per_sec().items()}

    def _examples(self, steps: int) -> int:
        """Number of examples in the gradients of a number of steps."""
        gradients = self._job.quorum if self._job.update.has_quorum else 1
        return steps * gradients * self._job.train.gradient_examples

    def _progress(self, session: WorkerSession, now: float, global_step: int, loss: float) -> None:
        before, step_before = self._last
        made = global_step - step_before
        secs = max(now - before, 1e-9)
        self._last = (now, global_step)
        point = Point(
            time=time.time(),
            step=global_step,
            generation=self._generation,
            loss=loss,
            losses=self.losses,
            step_secs=secs / max(made, 1),
            examples_per_sec=self._examples(made) / secs,
            learning_rate=self._learning_rate(global_step),
            gradient_norm=session.gradient_norm(),
            training_seconds=self.training_secs,
            first_step=self._first_step,
        )
        with self._storage.writing(History.FILE_NAME):
            self._history.append(point)
        extra = {"event": "progress", "target": self._job.train.steps, **point.model_dump(exclude={"time"})}
        logger.info("step %d of %d: loss %.4g", global_step, self._job.train.steps, loss, extra=extra)

    def _summarize(self, session: WorkerSession, batch: Batch, global_step: int, loss: float) -> None:
        scalars = {
            "loss": loss,
            **self._named_losses(),
            "step_secs": self.step_secs[-1] if self.step_secs else None,
            **rates_of(self._job, max(0, global_step - 1), self.monitor.reductions.steps),
            "gradient_norm": session.gradient_norm(),
        }
        self._summaries.write(session, batch, global_step, self._generation, self._first_step, scalars)

    def _learning_rate(self, global_step: int) -> float | None:
        """Of the update that led to a step; None if each of several losses has its own."""
        found = rates_of(self._job, max(0, global_step - 1), self.monitor.reductions.steps)
        return found.get(LEARNING_RATE)

    def _is_due(self, what: str, global_step: int, every: int | None) -> bool:
        if global_step < self._due[what]:
            return False
        self._due[what] = _next(global_step, every)
        return True


def _next(global_step: int, every: int | None) -> int:
    """The next multiple of `every` above `global_step`; `NEVER` without `every`."""
    return (global_step // every + 1) * every if every else NEVER
