"""The variables of a TensorFlow 1 graph of the user's own: read and set by name, or as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import UsageError
from psfleet.layout import TensorSpec
from psfleet.tensor_checks import arrays, check_finite, check_specs
from psfleet.tensor_checks import vector as as_vector
from psfleet.tf.ancestors import ancestors


class Variables:
    """The variables that a tensor depends on, or those of a Keras model, in a session.

    All operations are added to the graph by the constructor: no call adds any, so that a graph may be finalized before.
    The names are those of the variables without `:0`, in a Keras model their paths, after `prefix` and a slash if there
    is one: with prefixes the weights of two graphs whose variables have the same names can be kept in one mapping.

    Args of the constructor:
        target: A tensor or operation, for example the loss: all variables of its graph that it reads; or an object with
            `variables`, such as a Keras model; or a sequence of variables.
        session: In which they are, or will be, initialized.
        prefix: Begins the names.

    Raises:
        UsageError: There is no variable, two have one name, or one is in no TensorFlow 1 graph; or an argument is of
            another type.
    """

    def __init__(self, target: Any, session: v1.Session, prefix: str = "") -> None:
        if not hasattr(session, "run"):
            raise UsageError(f"the session is {session!r}, expected a tf.compat.v1.Session")
        self._session = session
        found = _variables_of(target)
        if not found:
            raise UsageError(f"{target!r} depends on no variable, expected one or more: give the loss or the model")
        start = f"{prefix}/" if prefix else ""
        self._given: dict[str, Any] = {}
        for variable in found:
            name = start + _name(variable)
            if name in self._given:
                raise UsageError(
                    f"two variables have the name {name!r}; expected one each: make each model in a variable_scope, or "
                    "use two `Variables` with different prefixes"
                )
            self._given[name] = variable
        self._variables = {name: _of_tensorflow(each) for name, each in self._given.items()}
        with _graph_of(self._variables).as_default():
            self._values = {name: each.read_value() for name, each in self._variables.items()}
            self._feeds = {
                name: v1.placeholder(each.dtype.base_dtype, each.shape) for name, each in self._variables.items()
            }
            self._assigns = {name: _assign(each, self._feeds[name]) for name, each in self._variables.items()}

    @property
    def names(self) -> list[str]:
        """The names of all variables, in the order of their creation."""
        return list(self._variables)

    @property
    def trained(self) -> list[str]:
        """The names of the trainable floating point variables, in the order of their creation."""
        return [
            name for name, each in self._variables.items() if self._given[name].trainable and each.dtype.is_floating
        ]

    def get(self) -> dict[str, np.ndarray]:
        """The values of all variables by name, read in one call of the session."""
        return {name: np.asarray(value) for name, value in self._session.run(self._values).items()}

    def set(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Sets variables in one call of the session; the others stay.

        Args:
            tensors: Some or all of those of `get`, of the same shapes and types.

        Raises:
            UsageError: There is none, a name is not known, a shape or a type differs, or a number is not finite;
                nothing has changed.
        """
        given = arrays(tensors)
        self._check(given)
        feeds = {self._feeds[name]: value for name, value in given.items()}
        self._session.run([self._assigns[name] for name in given], feeds)

    def get_flat(self) -> np.ndarray:
        """The variables of `trained` as one vector, in their order.

        Returns:
            `[sum of their sizes]`, float64 if one of them is, else float32, which holds float16 and bfloat16 exactly.

        Raises:
            UsageError: No variable is trained.
        """
        values = self._session.run({name: self._values[name] for name in self._flat_names()})
        return np.concatenate([np.asarray(value, self._flat_dtype()).reshape(-1) for value in values.values()])

    def set_flat(self, vector: np.ndarray) -> None:
        """Sets the variables of `trained` from a vector as `get_flat` returns it; each rounds to its type.

        Raises:
            UsageError: It has another length, a number is not finite in the variable's type, or no variable is trained.
        """
        variables = {name: self._variables[name] for name in self._flat_names()}
        shapes = [each.shape.as_list() for each in variables.values()]
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        values = as_vector(vector, np.float64)
        if values.shape != (sum(sizes),):
            raise UsageError(f"the vector has shape {list(values.shape)}, expected {[sum(sizes)]}")
        parts = np.split(values, np.cumsum(sizes)[:-1])
        dtypes = [each.dtype.base_dtype.as_numpy_dtype for each in variables.values()]
        named = zip(variables, parts, shapes, dtypes, strict=True)
        with np.errstate(over="ignore"):
            self.set({name: part.astype(dtype).reshape(shape) for name, part, shape, dtype in named})

    def _flat_names(self) -> list[str]:
        names = self.trained
        if not names:
            raise UsageError(f"no variable is a trainable floating point number, expected one or more: {self.names}")
        return names

    def _flat_dtype(self) -> type[np.floating[Any]]:
        dtypes = {self._variables[name].dtype.base_dtype for name in self.trained}
        return np.float64 if tf.float64 in dtypes else np.float32

    def _check(self, given: Mapping[str, np.ndarray]) -> None:
        specs = {
            name: TensorSpec(name, tuple(each.shape.as_list()), each.dtype.base_dtype.name)
            for name, each in self._variables.items()
        }
        check_specs(specs, {name: TensorSpec(name, each.shape, each.dtype.name) for name, each in given.items()})
        check_finite(given, specs)


def _variables_of(target: Any) -> Sequence[Any]:
    """In the order of their creation."""
    if isinstance(target, tf.__internal__.EagerTensor):
        raise UsageError(
            f"a tensor of shape {target.shape} is in no graph, expected one of a TensorFlow 1 graph: make it inside of "
            "one, as in `with tf.Graph().as_default():`"
        )
    if isinstance(target, tf.Tensor | tf.Operation):
        operation = target if isinstance(target, tf.Operation) else target.op
        read = {each.name for each in ancestors([operation])}
        with operation.graph.as_default():
            known = [*v1.global_variables(), *v1.local_variables()]
        return [each for each in known if _handle(each).name in read]
    given = getattr(target, "variables", target)
    found = list(given) if isinstance(given, Iterable) else [given]
    if not all(hasattr(each, "trainable") for each in found):
        raise UsageError(
            f"{target!r} has no variables, expected a tensor, an operation, a model or a sequence of variables"
        )
    return found


def _name(variable: Any) -> str:
    """Of Keras 3 the path: names of its variables are those in their layer."""
    return str(variable.path) if hasattr(variable, "path") else variable.name.partition(":")[0]


def _of_tensorflow(variable: Any) -> Any:
    """The variable of TensorFlow behind one of Keras 3, or itself."""
    return variable.value if hasattr(variable, "path") else variable


def _graph_of(variables: Mapping[str, Any]) -> tf.Graph:
    for name, variable in variables.items():
        if isinstance(getattr(variable, "handle", None), tf.__internal__.EagerTensor):
            raise UsageError(
                f"variable {name!r} is in no graph, expected those of a TensorFlow 1 graph: make the model inside of "
                "one, as in `with tf.Graph().as_default():`"
            )
    return next(iter(variables.values())).graph


def _handle(variable: Any) -> tf.Operation:
    return variable.handle.op if hasattr(variable, "handle") else variable.op


def _assign(variable: Any, value: tf.Tensor) -> Any:
    return variable.assign(value, read_value=False)
