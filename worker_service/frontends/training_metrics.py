"""Metrics of a Keras model over the training batches of all workers of a quorum.

The variables of a metric (a total and a count, numbers of true positives) are sums over examples. They are sent as
state: the ps hold their mean over the workers, which is 1 / quorum of the sum over all batches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import eager_mode

from psfleet.job.job import Job
from psfleet.job.program import KerasProgram
from psfleet.job.user_code import user_code
from psfleet.report.training_metrics import MEAN_LOSS
from worker_service.frontends.tracing import Scope

logger = logging.getLogger("psfleet.worker")

FLOATS = ("float32", "float64")


class TrainingMetrics:
    """The metrics of a compiled model while it trains.

    Only those of Keras are known to be sums. If a program has another class of metrics, or trains in async or ssp mode,
    where state is no mean over a step's workers, nothing is collected.

    Args of the constructor:
        model: Compiled.

    Attributes:
        is_collected: Whether a step updates the metrics.
    """

    def __init__(self, model: keras.Model, program: KerasProgram, job: Job) -> None:
        self._model = model
        self._job = job
        self._every = job.summary_steps * job.train.accumulate
        self._quorum = job.quorum
        self.is_collected = job.update.has_quorum and bool(program.metrics or program.weighted_metrics)

    def variables(self, index: int) -> list[Any]:
        """The variables of all metrics, which exist once the model and its metrics have been called.

        Args:
            index: Of this worker; the chief logs why there are none.
        """
        metrics = list(_single(self._model.metrics))
        others = [metric for metric in metrics if not _is_sum(metric)]
        if others and self.is_collected:
            self.is_collected = False
            if index == 0:
                logger.info(
                    "metric %s is a %s, expected a class of keras.metrics with floating point variables: no training "
                    "metrics are recorded, because its state may not add up over workers; evaluation is not affected",
                    others[0].name,
                    type(others[0]).__name__,
                    extra={"event": "no_training_metrics"},
                )
        return [variable for metric in metrics for variable in metric.variables] if self.is_collected else []

    def all_variables(self) -> list[Any]:
        """Those of every metric that has been called: also of those that an override of `Model.metrics` leaves out."""
        model = self._model
        of_compile = [model._loss_tracker, model._compile_metrics, model._compile_loss]
        unlisted = [variable for holder in of_compile if holder is not None for variable in holder.variables]
        return [*model.metrics_variables, *unlisted]

    def update(self, scope: Scope, x: Any, y: Any, y_pred: Any, weight: Any, loss: tf.Tensor) -> None:
        """Adds a batch, as Keras' train_step does, in the scope of a step."""
        if not self.is_collected:
            return
        compiled = self._model._compile_metrics
        self._model._loss_tracker.update_state(loss, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        with user_code(self._job, "a metric of KerasProgram"):
            if not compiled.built:
                # Metrics that the program has made itself have variables already, which the model does not list before.
                compiled.build(y, y_pred)
                scope.set_zeros(compiled.variables)
            self._model.compute_metrics(x, y, y_pred, sample_weight=weight)

    def at_start(self, value: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """A variable's value at the start of a step: zeros every `Job.summary_steps` steps.

        Args:
            number: int64 scalar, of the microbatch: that of the step, times `train.accumulate`, for the first one.
        """
        return tf.where(tf.equal(number % self._every, 0), tf.zeros_like(value), value)

    def results(self, variables: Sequence[Any], means: Sequence[np.ndarray]) -> dict[str, float]:
        """The metrics by their names in Keras; those that are no scalars are left out.

        Changes no variable: an evaluation may use the model on another thread.

        Args:
            means: The mean over the workers of each variable.
        """
        found: dict[str, Any] = {}
        with eager_mode():
            mapping = [
                (variable, tf.constant(mean * self._quorum, variable.dtype))
                for variable, mean in zip(variables, means, strict=True)
            ]
            with keras.StatelessScope(mapping):
                for metric in self._model.metrics:
                    result = metric.result()
                    named = result if isinstance(result, Mapping) else {metric.name: result}
                    found |= {name: np.asarray(value) for name, value in named.items()}
        return {
            MEAN_LOSS if name == "loss" else name: float(value) for name, value in found.items() if value.shape == ()
        }


def _single(metrics: Sequence[Any]) -> Sequence[Any]:
    """The metrics, with those of `compile` in place of their container."""
    return [single for metric in metrics for single in (getattr(metric, "metrics", None) or [metric])]


def _is_sum(metric: Any) -> bool:
    """Whether all variables of a metric are sums over examples, as those of every metric of Keras are."""
    module = type(metric).__module__
    return module.startswith(("keras.metrics", "keras.src.metrics")) and all(
        variable.dtype in FLOATS for variable in metric.variables
    )
