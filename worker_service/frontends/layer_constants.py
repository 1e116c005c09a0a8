"""Fingerprints of the floating point constants in a Keras model's forward pass, by which workers compare them.

A layer can have constants that are no variables: `Normalization` keeps the mean and the variance of `adapt()` as such,
and a layer of the program's own may have a table. Each worker computes them itself, and they must agree. They need not
agree to the last digit: sums have another order on a machine with another number of cores.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.layout import APPROXIMATE, Tables

_SCOPES = 2
"""The model and a layer in it."""


def fingerprints(concrete: Any) -> Tables:
    """The constants of each layer: its scope in the graph, and number, norm and projection of their elements.

    Args:
        concrete: The traced forward pass.
    """
    found: dict[str, list[tuple[str, np.ndarray]]] = defaultdict(list)
    for operation in concrete.graph.get_operations():
        if operation.type == "Const" and operation.outputs[0].dtype.is_floating:
            _add(found, operation.name, tf.make_ndarray(operation.get_attr("value")))
    for outer, inner in concrete.graph.captures:
        # Small ones are constants of the graph, too.
        if outer.dtype.is_floating and inner.op.type != "Const":
            _add(found, inner.op.name, outer.numpy())
    return tuple((f"constants of {scope}", _fingerprint(values)) for scope, values in found.items())


def _add(found: dict[str, list[tuple[str, np.ndarray]]], name: str, value: np.ndarray) -> None:
    scopes = name.split("/")
    # Others belong to the loss or the metrics.
    if len(scopes) > _SCOPES:
        found["/".join(scopes[:_SCOPES])].append((name, value))


def _fingerprint(named: list[tuple[str, np.ndarray]]) -> str:
    elements = np.concatenate(
        [value.astype(np.float64).reshape(-1) for _, value in sorted(named, key=lambda each: each[0])]
    )
    norm = float(np.linalg.norm(elements))
    projection = float(elements @ np.cos(1.0 + np.arange(elements.size)))
    return f"{APPROXIMATE}{elements.size} {norm:.6e} {projection:.6e}"
