"""The variables of a graph program: their values at the start, and what takes their place in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.user_code import user_code
from psfleet.layout import TensorSpec
from worker_service.frontends.constants import is_constant, is_only_read

Collections = tf.compat.v1.GraphKeys
GLOBAL_STEP = "global_step"
"""Name of the variable of `tf.train.get_or_create_global_step`, after that of a variable scope around the call."""


class GivenVariables:
    """A custom getter: returns given tensors and variables by name, and fills collections like TensorFlow."""

    def __init__(self, named: Mapping[str, Any], trained: set[str]) -> None:
        self._named = named
        self._trained = trained
        self._seen: set[str] = set()

    def __call__(self, getter: Callable[..., Any], name: str, **kwargs: Any) -> Any:
        """The tensor or variable of that name."""
        del getter
        if name not in self._named:
            raise ProgramError(
                f"loss(batch) gets variable {name} in its second call and not in its first, expected the same variables"
            )
        value = self._named[name]
        if name not in self._seen:
            self._seen.add(name)
            self._collect(name, value, kwargs.get("regularizer"), kwargs.get("collections"))
        return value

    def _collect(self, name: str, value: Any, regularizer: Any, collections: Sequence[str] | None) -> None:
        keys = set(collections or [Collections.GLOBAL_VARIABLES])
        if name in self._trained:
            keys.add(Collections.TRAINABLE_VARIABLES)
        tf.compat.v1.add_to_collections(keys, value)
        if regularizer is None:
            return
        # The name by which TensorFlow finds the penalties of a scope.
        with tf.name_scope(f"{name}/Regularizer/"):
            penalty = regularizer(value)
        if penalty is not None:
            tf.compat.v1.add_to_collection(Collections.REGULARIZATION_LOSSES, penalty)


def own_variable(spec: TensorSpec, collections: Sequence[str] = ()) -> Any:
    """This process's variable for a tensor that is not trained in its graph.

    TensorFlow's global step has another name here: `get_global_step` would look it up, find its handle and fail.
    """
    name = f"psfleet/{spec.name}" if spec.name == GLOBAL_STEP else spec.name
    return tf.compat.v1.Variable(
        tf.zeros(spec.shape, spec.dtype), trainable=False, collections=collections, name=name, use_resource=True
    )


def is_named_as_step(name: str, collections: Sequence[str]) -> bool:
    """Whether a variable can be TensorFlow's global step: one in a scope only if it is in its collection, too."""
    return name == GLOBAL_STEP or (_ends_as_step(name) and Collections.GLOBAL_STEP in collections)


def _ends_as_step(name: str) -> bool:
    return name.rpartition("/")[2] == GLOBAL_STEP


def _is_step(spec: TensorSpec) -> bool:
    """Whether a frozen tensor is the global step: see `is_frozen`."""
    return _ends_as_step(spec.name) and spec.shape == () and spec.dtype == "int64"


def is_frozen(spec: TensorSpec, variable: Any) -> bool:
    """Whether nothing in its graph can change a variable that is not trained.

    The global step is followed into branches, loops and functions: as state it would keep its first value. So does a
    constant of the program that only its name makes look like it, such as the counter of a network that was trained
    before.
    """
    if not _is_step(spec):
        return is_constant(variable)
    is_collected = any(each is variable for each in variable.graph.get_collection(Collections.GLOBAL_STEP))
    return (is_collected or spec.name == GLOBAL_STEP) and is_only_read(variable)


def at_step_of(
    specs: Sequence[TensorSpec], values: Sequence[tf.Tensor], number: tf.Tensor | None, accumulate: int
) -> list[tf.Tensor]:
    """Values of frozen tensors, with the step of a microbatch added to TensorFlow's global step.

    Args:
        number: int64 scalar, of the microbatch, of which a step has `accumulate`; None: the values stay.
    """
    is_step = [_is_step(spec) for spec in specs]
    if number is None or not any(is_step):
        return list(values)
    step = number // accumulate
    return [value + step if here else value for here, value in zip(is_step, values, strict=True)]


def values_at_step(
    frozen: Sequence[TensorSpec], values: Mapping[str, np.ndarray], number: int
) -> dict[str, np.ndarray]:
    """Named tensors, with the number of a batch added to TensorFlow's global step; see `at_step_of`.

    Args:
        frozen: Specs of the frozen tensors: a global step that the program itself changes is not one of them.
    """
    steps = {spec.name: np.asarray(values[spec.name] + number, spec.dtype) for spec in frozen if _is_step(spec)}
    return {**values, **steps}


def spec_of(name: str, variable: Any) -> TensorSpec:
    """Name, shape and type of a variable."""
    return TensorSpec(name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name)


def initialized(graph: tf.Graph, variables: Mapping[str, Any], job: Job) -> dict[str, np.ndarray]:
    """Runs the initializers of all variables, in a session of this process.

    Raises:
        ProgramError: An initializer raised.
    """
    with (
        tf.compat.v1.Session(graph=graph) as session,
        user_code(job, "initializing the variables of loss(batch)"),
    ):
        session.run(tf.compat.v1.variables_initializer(list(variables.values())))
        values: dict[str, np.ndarray] = session.run(dict(variables))
    return values
