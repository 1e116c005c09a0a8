"""The features of a batch, and the names of the tensors of features and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job

INPUTS, PREDICTIONS = "inputs", "predictions"
"""Names of a single tensor, and the beginning of those of a list."""
INPUT, OUTPUT = "input", "output"
"""The beginning of names in a service."""

Naming = Callable[[Any], dict[str, Any]]
"""The names of the leaves of a structure."""


def features_of(batch: Any) -> Any:
    """The features of a batch: of a tuple, as `(x, y)`, its first component; otherwise all of it."""
    return batch[0] if isinstance(batch, tuple) else batch


def by_name(structure: Any, only: str) -> dict[str, Any]:
    """The leaves of a structure: of a dict by its keys, of a list as `only_0` and so on, a single one as `only`.

    Raises:
        ValueError: Two have one name.
    """
    items = _items(structure, "", only)
    found = dict(items)
    if len(found) != len(items):
        names = [name for name, _ in items]
        raise ValueError(f"two of {only} have one name, expected different ones of {names}")
    return found


def protocol_names(structure: Any, kind: str) -> dict[str, Any]:
    """As `by_name`, as a service names them: a single leaf is `kind_0`.

    Raises:
        ValueError: Two have one name.
    """
    return by_name(structure if isinstance(structure, Mapping | list | tuple) else [structure], kind)


def checked_predictions(predictions: Any, job: Job, named: Naming) -> dict[str, tf.Tensor]:
    """The tensors of a prediction by name.

    Raises:
        ProgramError: It holds something other than dense tensors of numbers, or strings.
    """
    found = named(predictions)
    if not found:
        raise ProgramError(f"program {job.program!r}: there are no predictions, expected a tensor or several")
    for name, value in found.items():
        dtype = value.dtype if isinstance(value, tf.Tensor) else None
        if dtype is None or not (dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype == tf.string):
            got = type(value).__name__ if dtype is None else f"tensor of {dtype.name}"
            expected = "expected a dense tensor of numbers or strings"
            raise ProgramError(f"program {job.program!r}: {name} is a {got}, {expected}")
    # NumPy has no bfloat16.
    return {name: tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value for name, value in found.items()}


def of_predictions(structure: Any) -> dict[str, Any]:
    """The names in the file of `psfleet predict`, and in an exported model."""
    return by_name(structure, PREDICTIONS)


def of_outputs(structure: Any) -> dict[str, Any]:
    """The names of a service."""
    return protocol_names(structure, OUTPUT)


def _items(value: Any, name: str, only: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(f"{name}/{key}" if name else str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{name or only}_{index}", each) for index, each in enumerate(value)]
    else:
        return [(name or only, value)]
    return [item for key, each in parts for item in _items(each, key, only)]
