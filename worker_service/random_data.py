"""Finds random operations in a data set: every iterator starts them again from seeds that are fixed in its graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def is_random(dataset: tf.data.Dataset) -> bool:
    """Whether a data set shuffles anew in each iteration, or has random operations with a state.

    Stateless random operations have none, and what a Python generator draws cannot be seen.
    """
    return _draws(dataset) or any(is_random(source) for source in dataset._inputs())


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
