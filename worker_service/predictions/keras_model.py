"""The Keras model of a program, with trained weights, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.models.functional import Functional

from psfleet.checkpoint.keras_names import named_variables
from psfleet.job.job import Job
from psfleet.job.program import KerasProgram
from psfleet.layout import TensorSpec
from psfleet.tf.batching import of_all_batches
from psfleet.tf.program_data import built_model, first_batch
from worker_service.frontends.evaluation_errors import evaluating
from worker_service.frontends.keras_tables import KerasTables
from worker_service.keras_inputs import knows_inputs
from worker_service.predictions.names import Naming, checked_predictions
from worker_service.predictions.weights import Weights

WHAT = "predicting a batch"


class KerasModel:
    """See `Predictor`. Tables are read from the rows that were updated.

    Args of the constructor: as of `predictor`; raises so, too.
    """

    def __init__(self, program: KerasProgram, job: Job, weights: Weights, features: Any, named: Naming) -> None:
        self._job = job
        self._tables = KerasTables(job)
        with self._tables.building():
            self._model = built_model(program, job)
        variables = named_variables(self._model)
        specs = {
            id(variable): TensorSpec(name, tuple(variable.shape), variable.dtype)
            for name, variable in variables.items()
        }
        self._tables.bind(self._model, list(self._model.trainable_variables), specs)
        of_tables = {table.name for table in self._tables.specs}
        self._variables = {name: each for name, each in variables.items() if name not in of_tables}
        self.assign(weights)
        self.features = _features(self._model, program, job) if features is None else features
        # Not Keras' own function, which it may compile with XLA for each size of a batch.
        self._forward = tf.function(
            lambda x: checked_predictions(self._model(x, training=False), job, named),
            reduce_retracing=True,
            autograph=False,
        )

    def outputs(self) -> dict[str, tf.Tensor]:
        """See `Predictor`."""
        with self._tables.evaluating(self._rows), evaluating(self._job, WHAT):
            return self._forward.get_concrete_function(self.features).structured_outputs

    def assign(self, weights: Weights) -> None:
        """See `Predictor`."""
        weights.require({name: each.shape for name, each in self._variables.items()}, self._tables.specs)
        for name, variable in self._variables.items():
            variable.assign(weights.values[name])
        self._rows = weights.rows

    def predict(self, features: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """See `Predictor`."""
        x = tf.nest.pack_sequence_as(self.features, [tf.constant(each) for each in features])
        with self._tables.evaluating(self._rows), evaluating(self._job, WHAT):
            return {name: tensor.numpy() for name, tensor in self._forward(x).items()}


def _features(model: keras.Model, program: KerasProgram, job: Job) -> Any:
    """What the model is called with: a `tf.TensorSpec` `[None, ...]` for each tensor."""
    if isinstance(model, Functional):
        found = model.input
    else:
        found = model.inputs[0] if knows_inputs(model) else first_batch(program, job)[1][0]
    return tf.nest.map_structure(of_all_batches, found)
