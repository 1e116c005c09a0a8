"""Predictions of a trained program in this process: of a Keras model, or of the function of a graph program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from psfleet.checkpoint.keras_names import keras_names
from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.layout import EmbeddingSpec, TensorSpec
from psfleet.tf.program_data import batches_explained, built_model
from worker_service.frontends.evaluation_errors import evaluating
from worker_service.frontends.keras_tables import KerasTables
from worker_service.predictions.graph_model import GraphModel
from worker_service.predictions.names import checked_predictions

WHAT = "predicting a batch"


class Predictor(Protocol):
    """A function from the features of a batch to predictions."""

    def predict(self, features: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The predictions by name.

        Args:
            features: In `tf.nest.flatten` order of the features: `[batch, ...]` each.

        Raises:
            ProgramError: The program failed.
        """
        ...


def predictor(
    program: KerasProgram | GraphProgram,
    job: Job,
    values: Mapping[str, np.ndarray],
    embeddings: Sequence[EmbeddingSpec],
    features: Any,
) -> Predictor:
    """The predictor of a program with trained weights.

    Args:
        values: Every named tensor, and the rows of tables, as `read_values` returns them.
        embeddings: The tables of the weights.
        features: Of a batch: a `tf.TensorSpec` `[None, ...]` for each tensor, in any structure.

    Raises:
        UsageError: A graph program has no function for predictions.
        ProgramError: The program failed.
        BadJobError: The variables of the program differ from the weights.
    """
    if isinstance(program, KerasProgram):
        return _KerasPredictor(program, job, values, features)
    return GraphModel(program, job, values, embeddings, features)


class _KerasPredictor:
    """A Keras model, whose tables are read from the rows that were updated."""

    def __init__(self, program: KerasProgram, job: Job, values: Mapping[str, np.ndarray], features: Any) -> None:
        self._job = job
        self._features = features
        self._values = values
        self._tables = KerasTables(job)
        with self._tables.building():
            self._model = built_model(program, job)
        variables = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        named = dict(zip(keras_names(variables), variables, strict=True))
        specs = {
            id(variable): TensorSpec(name, tuple(variable.shape), variable.dtype) for name, variable in named.items()
        }
        self._tables.bind(self._model, list(self._model.trainable_variables), specs)
        of_tables = {table.name for table in self._tables.specs}
        for name, variable in named.items():
            if name not in of_tables:
                variable.assign(checked(job, name, tuple(variable.shape), values))
        # Not Keras' own function, which it may compile with XLA for each size of a batch.
        self._forward = tf.function(lambda x: self._model(x, training=False), reduce_retracing=True, autograph=False)

    def predict(self, features: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """See `Predictor`."""
        x = tf.nest.pack_sequence_as(self._features, [tf.constant(each) for each in features])
        shapes = [each.shape for each in features]
        with batches_explained(shapes), self._tables.evaluating(self._values), evaluating(self._job, WHAT):
            return {name: tensor.numpy() for name, tensor in checked_predictions(self._forward(x), self._job).items()}


def checked(job: Job, name: str, shape: tuple[int, ...], values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value of a variable.

    Raises:
        BadJobError: It is missing, or has another shape.
    """
    value = values.get(name)
    if value is None or value.shape != shape:
        got = "missing" if value is None else list(value.shape)
        raise BadJobError(f"tensor {name!r} is {got} in the weights and {list(shape)} in program {job.program!r}")
    return value
