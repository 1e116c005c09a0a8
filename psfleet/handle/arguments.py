"""Checks what a caller gives to a handle, before anything is sent."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from psfleet.errors import UsageError

MAX_WHOLE = 2**63 - 1


def whole(value: Any, call: str, name: str) -> int:
    """A number of things.

    Args:
        call, name: The method and its argument, for the message.

    Raises:
        UsageError: It is not a whole number of at least 1.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = 0
    if isinstance(value, bool) or not 1 <= found <= MAX_WHOLE:
        raise UsageError(f"{call}({name}={value!r}): expected a whole number of at least 1")
    return found


def arrays(tensors: Any) -> dict[str, np.ndarray]:
    """Tensors by name, of whatever can be converted to arrays.

    Raises:
        UsageError: It is no mapping of names to arrays.
    """
    if not isinstance(tensors, Mapping):
        raise UsageError(f"tensors: a value of type {type(tensors).__name__}, expected a mapping of names to arrays")
    for name in tensors:
        if not isinstance(name, str):
            raise UsageError(f"the name of a tensor is {name!r}, expected a text")
    return {name: _array(value, f"tensor {name!r}", None) for name, value in tensors.items()}


def vector(value: Any) -> np.ndarray:
    """A vector, float32.

    Raises:
        UsageError: It is none of numbers.
    """
    return _array(value, "the vector", np.float32)


def _array(value: Any, what: str, dtype: Any) -> np.ndarray:
    try:
        return np.asarray(value, dtype)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what} cannot be converted to an array: {' '.join(str(error).split())}") from error
