"""The variables for which a program's optimizer object is built to be traced, and names for those that it makes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from psfleet.checkpoint.keras_names import numbered
from psfleet.layout import TensorSpec

FLAT = "psfleet_flat"
"""Name of the vector on which an update is traced; Keras puts it before the names of its slots."""
MAX_COPY_SIZE = 4096
"""Most elements of the copy of a tensor."""


def copies(parameters: Sequence[TensorSpec], random: np.random.Generator) -> list[Any]:
    """A Keras variable for each tensor, of its name and rank, with random values; large ones are smaller."""
    return [_named_variable(spec.name, random.normal(size=_copy_shape(spec.shape))) for spec in parameters]


def names(optimizer: Any, variables: Sequence[Any]) -> list[str]:
    """A name for each variable, the same in every process: Keras numbers those that the program does not name."""
    found: list[str] = []
    for variable in variables:
        name = variable.name.removeprefix(f"{FLAT}_")
        if name == variable.name:
            name = _attribute(optimizer, variable) or name
        found.append(re.sub(r"\W", "_", name).strip("_") or "variable")
    return numbered(found, separator="__")


def _copy_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of the same rank with at most `MAX_COPY_SIZE` elements."""
    sizes = list(shape)
    while np.prod(sizes) > MAX_COPY_SIZE:
        largest = int(np.argmax(sizes))
        sizes[largest] //= 2
    return tuple(sizes)


def _named_variable(path: str, value: np.ndarray) -> Any:
    """A Keras variable with the path of another one."""
    variable = keras.Variable(value, dtype="float32", name=path.rpartition("/")[2])
    variable._path = path
    return variable


def _attribute(optimizer: Any, variable: Any) -> str:
    """The attribute of an optimizer that is a variable, or a list with it; empty if there is none."""
    for name, value in vars(optimizer).items():
        items = value if isinstance(value, list | tuple) else [value]
        if name not in ("_variables", "_trainable_variables") and any(item is variable for item in items):
            return name
    return ""
