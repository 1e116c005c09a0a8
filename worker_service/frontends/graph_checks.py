"""What a graph program's variables must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from psfleet.errors import ProgramError
from worker_service.frontends.graph_variables import Collections

_VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")


def check_variables(program: str, graph: tf.Graph, variables: Mapping[str, Any]) -> None:
    """Refuses variables that psfleet cannot train or keep.

    Args:
        program: The job's `program`, for messages.
        graph: In which the losses were built.
        variables: Of `get_variable`, by name.

    Raises:
        ProgramError: Names the variable and what was expected.
    """

    def error(message: str) -> ProgramError:
        return ProgramError(f"program {program!r}: {message}")

    for operation in graph.get_operations():
        if operation.type in _VARIABLE_OPS and operation.name not in variables:
            raise error(f"variable {operation.name} is not made by tf.compat.v1.get_variable")
    if graph.get_collection(Collections.TABLE_INITIALIZERS):
        raise error("loss(batch) uses a lookup table; expected it in the data set")
    if not any(variable.trainable for variable in variables.values()):
        raise error("loss(batch) has no trainable parameters, expected at least one")
    for name, variable in variables.items():
        if variable.trainable and variable.dtype.base_dtype != tf.float32:
            raise error(f"trainable variable {name} is {variable.dtype.base_dtype.name}, expected float32")
        if not variable.shape.is_fully_defined() or variable.dtype.base_dtype == tf.string:
            got = f"{variable.dtype.base_dtype.name} of shape {variable.shape}"
            raise error(f"variable {name} is {got}, expected numbers and a shape that is fully defined")
        if getattr(variable, "constraint", None) is not None:
            raise error(f"variable {name} has a constraint, which no ps applies")
