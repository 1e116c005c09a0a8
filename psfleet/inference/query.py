"""A query and its answer, and the checks of a query against the inputs and outputs of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from psfleet.inference.tensors import ModelMetadata, QueryError, Status, TensorMetadata, datatype_of

MEMBERS = "members"
"""Parameter of an answer: of how many members it is made."""


@dataclass(frozen=True)
class Query:
    """What a client asks.

    Attributes:
        model: Name of the model.
        version: Its version; empty: any.
        id: Returned in the answer.
        inputs: Names and tensors, `[rows, ...]`.
        outputs: Names of the outputs that are wanted; none: all.
        binary: Over REST: names of the outputs that are wanted in binary form; None: all.
    """

    model: str
    version: str
    id: str
    inputs: Sequence[tuple[str, np.ndarray]]
    outputs: Sequence[str] = ()
    binary: frozenset[str] | None = frozenset()


@dataclass(frozen=True)
class Answer:
    """What a client gets.

    Attributes:
        model: Name of the model.
        version: The steps of the weights it was computed with.
        members: `4 of 5`.
        outputs: Tensors by name, `[rows, ...]`.
    """

    model: str
    version: str
    members: str
    outputs: Mapping[str, np.ndarray]


def checked_inputs(query: Query, metadata: ModelMetadata) -> list[np.ndarray]:
    """The inputs of a query in the model's order.

    Raises:
        QueryError: One is missing, unknown or twice there, has another datatype or shape, or has no rows or elements,
            or another number of rows than the others; or an output is unknown.
    """
    names = [name for name, _ in query.inputs]
    known = [each.name for each in metadata.inputs]
    for name in names:
        if name not in known:
            raise QueryError(Status.INVALID, f"input {name!r} is unknown, expected {', '.join(known)}")
        if names.count(name) > 1:
            raise QueryError(Status.INVALID, f"input {name!r} is given twice, expected it once")
    outputs = [each.name for each in metadata.outputs]
    for name in query.outputs:
        if name not in outputs:
            raise QueryError(Status.INVALID, f"output {name!r} is unknown, expected {', '.join(outputs)}")
    given = dict(query.inputs)
    found = []
    for each in metadata.inputs:
        if each.name not in given:
            raise QueryError(Status.INVALID, f"input {each.name!r} is missing")
        found.append(_checked(each, given[each.name]))
    rows = {len(each) for each in found}
    if len(rows) > 1:
        raise QueryError(
            Status.INVALID, f"inputs have {', '.join(map(str, sorted(rows)))} rows, expected equal numbers"
        )
    return found


def _checked(wanted: TensorMetadata, tensor: np.ndarray) -> np.ndarray:
    datatype, shape = datatype_of(tensor.dtype), tensor.shape
    if datatype != wanted.datatype:
        raise QueryError(Status.INVALID, f"input {wanted.name!r} has datatype {datatype}, expected {wanted.datatype}")
    fits = len(shape) == len(wanted.shape) and all(
        size in (-1, found) for size, found in zip(wanted.shape, shape, strict=True)
    )
    # Rows without elements take no bytes: the limit of a message would not limit what the model computes.
    if not fits or not tensor.size:
        raise QueryError(
            Status.INVALID,
            f"input {wanted.name!r} has shape {list(shape)}, expected {list(wanted.shape)} with at least one row "
            "and no size 0",
        )
    return tensor
