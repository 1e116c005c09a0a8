"""Predictions of a trained program in this process: of a Keras model, or of the function of a graph program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.tf.program_data import training_data
from worker_service.input_pipeline import batch_spec
from worker_service.predictions.graph_model import GraphModel
from worker_service.predictions.keras_model import KerasModel
from worker_service.predictions.names import Naming, features_of, of_predictions
from worker_service.predictions.weights import Weights


class Predictor(Protocol):
    """A function from the features of a batch to predictions; used by one thread at a time.

    Attributes:
        features: Of a batch: a `tf.TensorSpec` `[None, ...]` for each tensor, in the structure that the program gets.
    """

    features: Any

    def outputs(self) -> dict[str, tf.Tensor]:
        """Symbolic predictions by name, with their types and what is known of their shapes.

        Raises:
            ProgramError: The program failed.
        """
        ...

    def assign(self, weights: Weights) -> None:
        """Replaces the weights.

        Raises:
            BadJobError: They are of another model; those that it has stay.
        """
        ...

    def predict(self, features: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The predictions by name, in the order of `outputs`.

        Args:
            features: In `tf.nest.flatten` order of the features: `[batch, ...]` each.

        Raises:
            ProgramError: The program failed.
        """
        ...


def predictor(
    program: KerasProgram | GraphProgram,
    job: Job,
    weights: Weights,
    features: Any = None,
    named: Naming = of_predictions,
) -> Predictor:
    """The predictor of a program with trained weights.

    Args:
        features: See `Predictor`; None: those that a Keras model is made for, or else those of the training data.
        named: Names predictions.

    Raises:
        UsageError: A graph program has no function for predictions.
        ProgramError: The program failed.
        BadJobError: The variables of the program differ from the weights.
    """
    if isinstance(program, KerasProgram):
        return KerasModel(program, job, weights, features, named)
    if features is None:
        features = features_of(batch_spec(training_data(program, job, 0, job.fleet.replicas), job, None))
    return GraphModel(program, job, weights, features, named)
