"""The chief's summaries of a step: scalars, histograms, training metrics, and what the program summarizes itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.report import pictures
from worker_service.batch_reader import Batch
from worker_service.chief.board import Board
from worker_service.chief.storage import Storage
from worker_service.chief.training_metrics_recorder import TrainingMetricsRecorder
from worker_service.evaluation import Evaluator
from worker_service.session import WorkerSession


class StepSummaries:
    """Reads what is summarized on the training thread, and writes it on that of TensorBoard's file.

    Image summaries of the program also become pictures of the run folder.

    Args of the constructor:
        evaluator: Of training metrics; None: there are none.
    """

    def __init__(
        self, out: Path, job: Job, layout: Layout, evaluator: Evaluator | None, storage: Storage, board: Board
    ) -> None:
        self._out = out
        self._job = job
        self._layout = layout
        self._storage = storage
        self._board = board
        self._training_metrics = TrainingMetricsRecorder(out, layout, evaluator, storage)

    def write(
        self,
        session: WorkerSession,
        batch: Batch,
        global_step: int,
        generation: int,
        first_step: int,
        scalars: Mapping[str, float | None],
    ) -> None:
        """Writes the summaries of a step.

        Args:
            batch: Of the step.
            first_step: At which the generation began.
            scalars: By name; None is left out.
        """
        own = session.summaries(batch)
        metrics = self._training_metrics.of_step(session) if self._ends_interval(global_step, first_step) else dict
        gradients = session.gradients() if self._job.summaries.gradient_histograms else []

        def write() -> None:
            # Here, on the thread of the file: the fleet waits for the chief, and Keras takes 12 ms for an AUC.
            found = metrics()
            self._training_metrics.record(global_step, generation, first_step, found)
            for name, value in {**found, **scalars}.items():
                if value is not None:
                    tf.summary.scalar(f"train/{name}", value)
            for spec, gradient in zip(self._layout.parameters.specs, gradients, strict=False):
                tf.summary.histogram(f"gradient/{spec.name}", gradient)
            if own is not None:
                tf.summary.experimental.write_raw_pb(own, global_step)
                self._add_pictures(global_step, own)

        self._board.write(global_step, write)

    def _ends_interval(self, global_step: int, first_step: int) -> bool:
        """Whether the training metrics are sums over a whole interval.

        Workers begin from zeros at each multiple of its length, and a generation does at its first step. A chief that
        was late at a multiple comes with metrics that have begun anew.
        """
        steps = self._job.summary_steps
        return global_step % steps == 0 and global_step - first_step >= steps

    def newest_training_metrics(self) -> dict[str, float]:
        """Metrics of the newest training batches, by name; empty if none were recorded. Waits for their computation."""
        self._board.drain()
        self._training_metrics.flush()
        return self._training_metrics.newest

    def _add_pictures(self, global_step: int, own: bytes) -> None:
        summary = tf.compat.v1.Summary.FromString(own)
        images = [
            (each.tag.removesuffix("/image"), each.image.encoded_image_string)
            for each in summary.value
            if each.HasField("image")
        ]
        if images:
            with self._storage.writing(pictures.FOLDER, is_awaited=False):
                pictures.add(self._out, global_step, images)
