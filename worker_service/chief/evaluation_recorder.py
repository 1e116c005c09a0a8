"""Evaluates the model during training and at its end, and records the metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import tensorflow as tf

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.tensors import read_values
from psfleet.errors import NoCheckpointError
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.report.last_evaluation import SKIPPED
from psfleet.report.schema import Evaluation
from worker_service.chief.board import Board
from worker_service.chief.evaluations import Evaluations, Values
from worker_service.chief.monitor import Monitor
from worker_service.chief.storage import Storage
from worker_service.evaluation import Evaluator

logger = logging.getLogger("psfleet.chief")


class EvaluationRecorder:
    """The evaluations of the chief: of its own weights, or of checkpoints (`Job.evaluates_checkpoints`).

    Only the training thread calls it; see `Evaluations`.

    Args of the constructor:
        evaluator: None: the program could not be loaded, and nothing is evaluated.
        monitor: Receives the evaluations.

    Attributes:
        metrics: Of the newest evaluation, by name; empty before the first.
    """

    def __init__(
        self, job: Job, layout: Layout, evaluator: Evaluator | None, storage: Storage, board: Board, monitor: Monitor
    ) -> None:
        self._job = job
        self._layout = layout
        self._evaluator = evaluator
        self._storage = storage
        self._board = board
        self._monitor = monitor
        self.evaluations = Evaluations(
            self._evaluate, storage.events, job.deadlines.first_secs, on_skipped=monitor.skipped
        )
        self.metrics: dict[str, float] = {}
        # Of the newest evaluation of `evaluate`, none of which runs beside another one.
        self._evaluated: dict[str, float] = {}
        self._generation = 0
        self._generations: dict[int, int] = {}
        self._first_steps: dict[int, int] = {}

    def enter(self, generation: int, first_step: int) -> None:
        """Own weights are from now on those of a generation, which began at a step."""
        self._generation = generation
        self._first_steps[generation] = first_step

    def start(self, global_step: int) -> None:
        """Training starts at a step; records the evaluations that the chief before this one has not finished."""
        first_step = self._first_steps.get(self._generation, global_step)
        steps = self._monitor.lost(self._generation, first_step, global_step)
        if steps and self._evaluator is not None and self._evaluator.has_data:
            self.evaluations.record_lost(steps)

    def begin(self, global_step: int, values: Callable[[], Values]) -> None:
        """Begins to evaluate named tensors of the present generation; see `Evaluations.begin`."""
        # A loss can start the next generation before the evaluation ends.
        self._generations[global_step] = self._generation
        self.evaluations.begin(global_step, values)

    def begin_checkpoints(self) -> None:
        """Begins to evaluate the checkpoints that are due; without evaluation data none is read.

        Raises: As `Evaluations.begin`.
        """
        for checkpoint in self._monitor.take_due():
            if self._evaluator is not None and self._evaluator.has_data:
                self.evaluations.begin(checkpoint.step, partial(self._read, checkpoint), is_saved=True)
            else:
                self._monitor.skipped(checkpoint.step)

    def evaluate(
        self, global_step: int, values: Callable[[], Values], is_over: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Evaluates named tensors at a global step and records the metrics, after the evaluations that still wait.

        Returns:
            The metrics by name, empty if the program has no evaluation data; None once `is_over` was true before.

        Raises:
            ProgramError: The program failed.
            BadJobError: The job watches a metric that the program does not have.
            DeadlineError: An evaluation took longer than `deadlines.first_secs`.
        """
        self.begin_checkpoints()
        if not self.evaluations.finish(is_over):
            return None
        self._evaluated = {}
        self.begin(global_step, values)
        return self._evaluated if self.evaluations.finish(is_over) else None

    def evaluate_last(self, checkpoint: Checkpoint, is_over: Callable[[], bool]) -> bool:
        """Evaluates the last checkpoint of the run as `evaluate` does; whether it is done."""
        self._monitor.begin_last(checkpoint)
        return self.evaluate(checkpoint.step, lambda: self._tensors(checkpoint), is_over) is not None

    def _tensors(self, checkpoint: Checkpoint) -> Values:
        with self._storage.disk.reading(checkpoint.folder):
            return read_values(checkpoint)

    def _read(self, checkpoint: Checkpoint) -> Values:
        """The tensors of a checkpoint; none if it cannot be read, which does not end training."""
        try:
            return self._tensors(checkpoint)
        except (OSError, NoCheckpointError) as error:
            cause = f"step {checkpoint.step} is not evaluated: {error}"
            self._storage.failed(f"evaluation of {checkpoint.folder}", cause, SKIPPED)
            self._monitor.skipped(checkpoint.step)
            return {}

    def _evaluate(self, global_step: int, tensors: Values) -> None:
        """Evaluates and records; on the thread of the evaluations."""
        own = self._generations.pop(global_step, self._generation)
        started = time.perf_counter()
        metrics = self._evaluator.evaluate(tensors, global_step) if self._evaluator is not None and tensors else {}
        if not metrics:
            self._monitor.skipped(global_step)
            return
        self.metrics = self._evaluated = metrics
        secs = round(time.perf_counter() - started, 2)
        self._log(global_step, metrics, secs)
        self._summarize(global_step, metrics, tensors)
        generation = self._monitor.generation_of(global_step, own)
        evaluation = Evaluation(
            time=time.time(),
            step=global_step,
            generation=generation,
            first_step=self._first_steps.get(generation),
            secs=secs,
            metrics=metrics,
        )
        self._monitor.evaluated(evaluation)

    def _log(self, global_step: int, metrics: dict[str, float], secs: float) -> None:
        text = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        extra = {"event": "evaluation", "step": global_step, "metrics": metrics, "secs": secs}
        logger.info("evaluation at step %d: %s", global_step, text, extra=extra)

    def _summarize(self, global_step: int, metrics: dict[str, float], tensors: Values) -> None:
        specs = self._layout.parameters.specs if self._job.summaries.histograms else ()
        # No more than is needed: it waits for the disk.
        weights = {spec.name: tensors[spec.name] for spec in specs}

        def write() -> None:
            for name, value in metrics.items():
                tf.summary.scalar(f"evaluate/{name}", value)
            for name, tensor in weights.items():
                tf.summary.histogram(name, tensor)

        self._board.write(global_step, write)
