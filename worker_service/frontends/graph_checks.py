"""What psfleet cannot train of a graph program: found before the first step, each with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from psfleet.errors import ProgramError
from worker_service.frontends.graph_variables import Collections

_VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")


def check_variables(program: str, graph: tf.Graph, variables: Mapping[str, Any], tables: Collection[str]) -> None:
    """Raises ProgramError if a worker cannot train the losses in a graph.

    Args:
        variables: From `get_variable`, by name.
        tables: The names of the variables whose rows are on the ps.
    """
    for operation in graph.get_operations():
        if operation.type in _VARIABLE_OPS and operation.name not in {*variables, *tables}:
            raise _error(program, f"variable {operation.name} is not made by tf.compat.v1.get_variable")
    if graph.get_collection(Collections.TABLE_INITIALIZERS):
        raise _error(program, "loss(batch) uses a lookup table; expected it in the data set")
    if not any(variable.trainable for variable in variables.values()):
        without = " without those of tables" if tables else ""
        raise _error(program, f"loss(batch) has no trainable parameters{without}, expected at least one")
    for name, variable in variables.items():
        if variable.trainable and variable.dtype.base_dtype != tf.float32:
            raise _error(program, f"trainable variable {name} is {variable.dtype.base_dtype.name}, expected float32")
        if not variable.shape.is_fully_defined() or variable.dtype.base_dtype == tf.string:
            got = f"{variable.dtype.base_dtype.name} of shape {variable.shape}"
            raise _error(program, f"variable {name} is {got}, expected numbers and a shape that is fully defined")
        if getattr(variable, "constraint", None) is not None:
            raise _error(program, f"variable {name} has a constraint, which no ps applies")


def _error(program: str, message: str) -> ProgramError:
    return ProgramError(f"program {program!r}: {message}")
