"""Finds operations in a data set: random ones, and those that call Python; and sets the state of its generators.

Every iterator starts random operations again from seeds that are fixed in its graph. Generators, which the random
layers of Keras have, keep their state in a variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

KERAS, TENSORFLOW = "seed_generator_state", "StateVar"
"""Names of the state, an int64 vector, of `keras.random.SeedGenerator` (seed, count) and of `tf.random.Generator`."""
CHANGES = (
    "Assign",
    "ResourceScatter",
    "Rng",
    "StatefulRandom",
    "StatefulStandard",
    "StatefulTruncated",
    "StatefulUniform",
)
"""Beginnings of the names of operations that change a variable; the later ones are those of `tf.random.Generator`."""
PYTHON_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
"""Operations that call Python."""


def is_random(dataset: tf.data.Dataset) -> bool:
    """Whether a data set shuffles anew in each iteration, or has random operations with a state, or changes variables.

    Stateless random operations have none, and what a Python generator draws cannot be seen.
    """
    return draws_from_seeds(dataset) or any(node.op.startswith(CHANGES) for node in _all_nodes(dataset))


def draws_from_seeds(dataset: tf.data.Dataset) -> bool:
    """Whether a data set has random operations that begin with each iterator again, generators aside."""
    return _draws(dataset) or any(map(draws_from_seeds, dataset._inputs()))


def has_own_order(dataset: tf.data.Dataset) -> bool:
    """Whether a data set shuffles once and for all without a seed: each process has another order."""
    is_without_seed = type(dataset).__name__ == "_ShuffleDataset" and not (int(dataset._seed) or int(dataset._seed2))
    return is_without_seed or any(map(has_own_order, dataset._inputs()))


def calls_python(dataset: tf.data.Dataset) -> bool:
    """Whether a data set calls functions of this process: `from_generator`, `py_function` and `numpy_function` do."""
    return any(node.op in PYTHON_CALLS for node in _all_nodes(dataset))


def _draws(dataset: Any) -> bool:
    """Whether a data set or its functions draw random numbers, its inputs aside."""
    kind = type(dataset).__name__
    if kind == "_ShuffleDataset":
        return bool(dataset._reshuffle_each_iteration)
    if kind == "_RandomDataset":
        return True
    return any(_is_random_node(node) for node in _nodes(dataset))


def _all_nodes(dataset: Any) -> Iterator[Any]:
    """The operations of all functions, those of its inputs included."""
    yield from _nodes(dataset)
    for source in dataset._inputs():
        yield from _all_nodes(source)


def _nodes(dataset: Any) -> Iterator[Any]:
    """The operations of a data set's functions."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        yield from graph.node
        for inner in graph.library.function:
            yield from inner.node_def


def _is_random_node(node: Any) -> bool:
    """Random operations have two seeds as attributes, data sets inside functions as inputs."""
    return "seed2" in node.attr or node.op.startswith(("ShuffleDataset", "ShuffleAndRepeatDataset", "RandomDataset"))


def set_generators(dataset: tf.data.Dataset, seed: np.random.SeedSequence) -> None:
    """Sets the state of the generators that the functions of a data set draw from: a function of the seed alone."""
    found = {id(variable): variable for variable in _generators(dataset)}
    for variable, own in zip(found.values(), seed.spawn(len(found)), strict=True):
        words = own.generate_state(variable.shape.num_elements()).astype(np.int64)
        if _name(variable) == KERAS:
            words[1:] = 0
        variable.assign(words)


def _generators(dataset: Any) -> Iterator[tf.Variable]:
    """In the order in which the functions were traced: that of a graph's variables is another one in each process."""
    for function in dataset._functions():
        graph = function.function.graph
        # Not `graph.variables`, which fails if one is gone.
        living = [variable for reference in graph._weak_variables if (variable := reference()) is not None]
        found = {
            id(each.handle): each for each in living if _name(each) in (KERAS, TENSORFLOW) and each.dtype == tf.int64
        }
        yield from (found[id(handle)] for handle, _ in graph.captures if id(handle) in found)
    for source in dataset._inputs():
        yield from _generators(source)


def _name(variable: tf.Variable) -> str:
    return str(variable.name).rpartition("/")[2].partition(":")[0]
