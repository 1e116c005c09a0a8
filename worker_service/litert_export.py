"""Writes a LiteRT model of a Keras model, and compares its metrics with those of the float model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from psfleet.checkpoint import versions
from psfleet.errors import ProgramError, UsageError
from psfleet.job.job import Job
from psfleet.job.monitored import Monitored, is_loss
from psfleet.job.program import KerasProgram
from psfleet.job.user_code import user_code
from psfleet.job.watched_metrics import main_metric
from psfleet.plurals import counted
from psfleet.tf.batching import of_all_batches
from worker_service import litert
from worker_service.keras_export import compared, named_inputs, saved_model, saving


def write(model: keras.Model, x: Any, folder: Path, program: KerasProgram, job: Job, request: versions.Request) -> str:
    """Writes `model.tflite` into a folder, and runs it.

    The predictions of the float model on `x` must be those of the Keras model.

    Returns:
        The size and the metrics of the written model and of the one that it is compared with, in one line: an int8
        model with the float one, that one with the Keras model.

    Raises:
        UsageError: `max_loss` is given, and the program has no evaluation data.
        ProgramError: The model cannot be converted, or loses more than `max_loss` of the main metric.
    """
    if request.max_loss is not None and program.evaluate is None:
        raise UsageError(f"--max-loss: program {job.program!r} has no evaluation data, expected one with `evaluate`")

    def named(features: Any) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in named_inputs(model, features, job).items()}

    named(x)
    with user_code(job, "predicting a batch"):
        structure = keras.tree.map_structure(lambda each: 0, model(x, training=False))
    names = getattr(model, "output_names", ())
    # Before the conversion, which discards what the program prints.
    examples = [] if request.calibrate is None else litert.calibration(program, job, request.calibrate, named)
    with tempfile.TemporaryDirectory() as temporary:
        saved_model(model, tf.nest.map_structure(of_all_batches, x), Path(temporary), job)
        content = written = litert.converted(Path(temporary), job)
        verified = compared(model, litert.loaded(content, job, named, structure), x, job)
        if examples:
            written = litert.converted(Path(temporary), job, examples)
    predict = litert.loaded(content, job, named, structure) if examples else lambda batch: model(batch, training=False)
    before = litert.metrics(predict, program, job, names)
    after = litert.metrics(litert.loaded(written, job, named, structure), program, job, names)
    check_loss(before, after, job, request.max_loss)
    with saving(job, "saving the model"):
        (folder / versions.LITERT_FILE).write_bytes(written)
    if not examples:
        return f"{verified}; Keras{_listed(before)}; litert float {len(content):,} bytes{_listed(after)}"
    calibrated = f"calibrated on {counted(len(examples), 'training example')}"
    return (
        f"{verified}; float {len(content):,} bytes{_listed(before)}; int8 {len(written):,} bytes "
        f"({len(written) / len(content):.2f} of float){_listed(after)}; {calibrated}"
    )


def check_loss(before: Mapping[str, float], after: Mapping[str, float], job: Job, max_loss: float | None) -> None:
    """Compares the main metric of two models: the one that the job watches, or else accuracy, or else the loss.

    Raises:
        ProgramError: It is worse by more than `max_loss`, or not finite.
    """
    if max_loss is None:
        return
    name = main_metric(job, before)
    watched = next((each for each in job.monitored.values() if each.metric == name), None)
    if watched is None:
        # Of another metric it is not known which values are better.
        name = name if "accuracy" in name else "loss"
        watched = Monitored(metric=name, direction="minimize" if is_loss(name) else "maximize")
    loss = -watched.gain(after[name], before[name])
    if not loss <= max_loss:
        raise ProgramError(
            f"program {job.program!r}: {name} of the LiteRT model is {after[name]:.4g}, and {before[name]:.4g} of the "
            f"float model: worse by {loss:.4g}, expected at most --max-loss {max_loss:g}"
        )


def _listed(metrics: Mapping[str, float]) -> str:
    return "".join(f", {name} {value:.4f}" for name, value in metrics.items())
