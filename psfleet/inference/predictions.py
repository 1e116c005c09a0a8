"""Predictions of the members of an ensemble: which members fit together, and what an answer is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from psfleet.inference.batches import Combined
from psfleet.inference.tensors import DATATYPES, ModelMetadata, QueryError, Status, TensorMetadata


@dataclass(frozen=True)
class Prediction:
    """A member's reply to a batch.

    Attributes:
        step: Of the weights.
        outputs: In the model's order, `[rows, ...]`.
        error: Why there are none; empty: there are.
    """

    step: int
    outputs: Sequence[np.ndarray]
    error: str = ""


def unfit(metadata: ModelMetadata, others: ModelMetadata | None, num_models: int) -> str:
    """Why a member cannot be one of an ensemble; empty: it can.

    Args:
        metadata: Of its model.
        others: Of the members that have joined; None: there are none yet.
        num_models: Of the ensemble.
    """
    if others is not None and metadata != others:
        return f"inputs or outputs are {metadata}, expected those that the service has: {others}"
    for each in metadata.outputs if num_models > 1 else ():
        if not np.issubdtype(DATATYPES[each.datatype], np.floating):
            return f"output {each.name} is {each.datatype}, expected floating point numbers: members are averaged"
    return ""


def mean(values: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of the values of one output, in their type; a single value is returned as it is.

    Raises:
        QueryError: Their shapes differ, in sizes that the metadata leave open.
    """
    if len(values) == 1:
        return values[0]
    other = next((each for each in values if each.shape != values[0].shape), None)
    if other is not None:
        shapes = f"{list(values[0].shape)} and {list(other.shape)}"
        raise QueryError(Status.FAILED, f"members give outputs of shapes {shapes}, expected equal ones")
    return np.mean(np.stack(values), axis=0, dtype=np.float64).astype(values[0].dtype)


def version_of(steps: Sequence[int]) -> str:
    """The version of members with these steps: one number if all are equal, or else one of each."""
    return "-".join(str(step) for step in (steps[:1] if len(set(steps)) == 1 else steps))


def checked(prediction: Prediction, rows: int) -> Prediction:
    """A prediction of so many rows; an error if an output has another number."""
    wrong = [each.shape for each in prediction.outputs if not each.shape or each.shape[0] != rows]
    if wrong and not prediction.error:
        return Prediction(prediction.step, (), f"the model gives an output of shape {wrong[0]} for {rows} rows")
    return prediction


def combined(predictions: Mapping[int, Prediction], steps: Mapping[int, int]) -> Combined:
    """The mean of the predictions of all models that have one.

    Args:
        predictions: By the index of the model; one at least.
        steps: The newest known step of each model. One without a prediction stands with it, so that the version keeps
            its form.

    Raises:
        QueryError: All have failed, or their outputs differ in shape.
    """
    found = {model: each for model, each in sorted(predictions.items()) if not each.error}
    if not found:
        raise QueryError(Status.FAILED, next(iter(predictions.values())).error)
    versions = {**steps, **{model: each.step for model, each in found.items()}}
    outputs = [mean(each) for each in zip(*(each.outputs for each in found.values()), strict=True)]
    return Combined(outputs, version_of([step for _, step in sorted(versions.items())]), len(found))


def without_rows(tensor: TensorMetadata) -> np.ndarray:
    """An input without rows."""
    return np.empty([0, *(max(size, 0) for size in tensor.shape[1:])], DATATYPES[tensor.datatype])
