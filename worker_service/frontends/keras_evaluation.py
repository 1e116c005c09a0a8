"""Evaluates a Keras model on the program's evaluation data, by Keras itself."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from psfleet.job.job import Job
from psfleet.tf.program_data import batches_explained
from worker_service.frontends.evaluation_errors import evaluating, require_examples

logger = logging.getLogger("psfleet.worker")
_left_out: list[str] = []
"""The metrics of the last warning."""


class _SeenBatches(keras.callbacks.Callback):
    """Whether an evaluation has had a batch: without any, Keras returns no metrics.

    Attributes:
        are_any: Whether it has.
    """

    async_safe = True
    """Keras need not wait for it after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.are_any = False

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self.are_any = True


def evaluate(model: keras.Model, data: tf.data.Dataset, job: Job) -> dict[str, float]:
    """The metrics over all batches.

    Raises:
        ProgramError: The model, its loss or a metric raised, or the data are empty.
    """
    # None, as the sample weights, has no shape.
    specs = [spec for spec in tf.nest.flatten(data.element_spec) if hasattr(spec, "shape")]
    shapes = [spec.shape for spec in specs]
    # Of data whose length TensorFlow does not know; it is about an interrupted training.
    warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
    seen = _SeenBatches()
    # A model with an `evaluate` of its own need not take callbacks.
    is_own = type(model).evaluate is not keras.Model.evaluate
    with batches_explained(shapes), evaluating(job):
        callbacks = {} if is_own else {"callbacks": [seen]}
        metrics = model.evaluate(data, return_dict=True, verbose=0, **callbacks)
    require_examples(job, is_own or seen.are_any)
    values = {name: np.asarray(value) for name, value in metrics.items()}
    arrays = [name for name, value in values.items() if value.shape]
    if arrays and arrays != _left_out:
        _left_out[:] = arrays
        logger.warning(
            "not recorded, because they are no numbers but arrays: %s; expected metrics with one value, for example "
            "average='macro'",
            ", ".join(arrays),
        )
    return {name: float(value) for name, value in values.items() if not value.shape}
