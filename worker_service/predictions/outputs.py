"""Names of the tensors of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job

ONLY = "predictions"
"""Name of a single tensor, and beginning of those of a list."""


def by_name(predictions: Any, job: Job) -> dict[str, tf.Tensor]:
    """The tensors of a prediction: of a dict by its keys, of a list as `predictions_0` and so on.

    Raises:
        ProgramError: It holds something other than dense tensors of numbers, or two of one name.
    """
    found: dict[str, tf.Tensor] = {}
    for name, value in _items(predictions, ""):
        tensor = value if isinstance(value, tf.Tensor) else None
        is_number = tensor is not None and (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool)
        if tensor is None or not is_number:
            got = type(value).__name__ if tensor is None else f"tensor of {tensor.dtype.name}"
            raise ProgramError(
                f"program {job.program!r}: {name or ONLY} is a {got}, expected a dense tensor of numbers"
            )
        if (name or ONLY) in found:
            raise ProgramError(f"program {job.program!r}: two predictions have the name {name or ONLY}")
        # NumPy has no such type.
        found[name or ONLY] = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor
    if not found:
        raise ProgramError(f"program {job.program!r}: there are no predictions, expected a tensor or several")
    return found


def _items(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(f"{name}/{key}" if name else str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{name or ONLY}_{index}", each) for index, each in enumerate(value)]
    else:
        return [(name, value)]
    return [item for key, each in parts for item in _items(each, key)]
