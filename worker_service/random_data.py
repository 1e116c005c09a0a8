"""Finds operations in a data set: random ones, and those that call Python.

Every iterator starts random operations again from seeds that are fixed in its graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

PYTHON_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
"""Operations that call Python."""


def is_random(dataset: tf.data.Dataset) -> bool:
    """Whether a data set shuffles anew in each iteration, or has random operations with a state.

    Stateless random operations have none, and what a Python generator draws cannot be seen.
    """
    return _draws(dataset) or any(is_random(source) for source in dataset._inputs())


def calls_python(dataset: tf.data.Dataset) -> bool:
    """Whether a data set calls functions of this process: `from_generator`, `py_function` and `numpy_function` do."""
    return any(node.op in PYTHON_CALLS for node in _nodes(dataset)) or any(map(calls_python, dataset._inputs()))


def _draws(dataset: Any) -> bool:
    """Whether a data set or its functions draw random numbers, its inputs aside."""
    kind = type(dataset).__name__
    if kind == "_ShuffleDataset":
        return bool(dataset._reshuffle_each_iteration)
    if kind == "_RandomDataset":
        return True
    return any(_is_random_node(node) for node in _nodes(dataset))


def _nodes(dataset: Any) -> Iterator[Any]:
    """The operations of a data set's functions."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        yield from graph.node
        for inner in graph.library.function:
            yield from inner.node_def


def _is_random_node(node: Any) -> bool:
    """Stateful random operations have two seeds as attributes, data sets inside functions as inputs."""
    return "seed2" in node.attr or node.op.startswith(("ShuffleDataset", "ShuffleAndRepeatDataset", "RandomDataset"))
