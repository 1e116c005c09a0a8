"""Checks named tensors that a user gives against those of a model; each message names the cure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from psfleet.errors import UsageError
from psfleet.layout import TensorSpec

MAX_NAMED = 5
"""Names that a message lists."""
MAX_NEAR = 3
"""Names that a message proposes."""


def check_specs(specs: Mapping[str, TensorSpec], given: Mapping[str, TensorSpec]) -> None:
    """Checks names, shapes and types of some tensors against those of a model.

    Raises:
        UsageError: There is none, a name is not one of the model's, or a tensor has another shape or type.
    """
    if not given:
        raise UsageError(f"no tensor is given; expected one or more of {_listed(list(specs))}")
    unknown = [name for name in given if name not in specs]
    if unknown:
        raise UsageError(f"the model has no tensor {_listed(unknown)}; expected {_meant(specs, given, unknown[0])}")
    for name, found in given.items():
        spec = specs[name]
        if (found.shape, found.dtype) != (spec.shape, spec.dtype):
            raise UsageError(
                f"tensor {name!r} is {found.dtype} {list(found.shape)}, expected {spec.dtype} {list(spec.shape)}"
            )


def check_all(specs: Mapping[str, TensorSpec], given: Mapping[str, TensorSpec]) -> None:
    """Checks that tensors are exactly those of a model; raises `UsageError` as `check_specs`, and if one is missing."""
    check_specs(specs, given)
    missing = [name for name in specs if name not in given]
    if missing:
        raise UsageError(f"tensor {_listed(missing)} of the model is missing; expected all of them")


def check_finite(tensors: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec]) -> None:
    """Checks that floating point tensors have finite numbers.

    Raises:
        UsageError: One has not.
    """
    for name, value in tensors.items():
        # Types of 8 bits and bfloat16 are no floating point numbers to NumPy, and convert to them.
        if specs[name].is_float and not np.isfinite(value.astype(np.float64)).all():
            raise UsageError(f"tensor {name!r} has NaN or infinity, expected finite numbers")


def _meant(specs: Mapping[str, TensorSpec], given: Collection[str], unknown: str) -> str:
    """What was probably meant by a name that is not one of the model's."""
    names = [name for name in specs if name not in given] or list(specs)
    near = " or ".join(map(repr, _nearest(unknown, names)))
    if not near:
        return f"names of the model: {_listed(names)}; `weights.names` has all of them"
    return f"{near} in place of {unknown!r}: rename it, or take the names from `weights.names`"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    """The names that were probably meant: those with another prefix, or else similar ones; empty if none is similar."""
    same_end = [each for each in names if each.endswith(f"/{name}") or name.endswith(f"/{each}")]
    return (same_end or difflib.get_close_matches(name, names, n=MAX_NEAR))[:MAX_NEAR]


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(map(repr, list(names)[:MAX_NAMED]))
    rest = len(names) - MAX_NAMED
    return f"{shown} and {rest} more" if rest > 0 else shown


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


def vector(value: Any, dtype: Any) -> np.ndarray:
    """A vector of numbers.

    Raises:
        UsageError: It cannot be converted to the type.
    """
    return _array(value, "the vector", dtype)


def _array(value: Any, what: str, dtype: Any) -> np.ndarray:
    try:
        return np.asarray(value, dtype)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what} cannot be converted to an array: {' '.join(str(error).split())}") from error
