"""Has the `tf.function`s of a model be a part of the graph in which they are called.

A `tf.function` keeps a graph of its first call for later ones. The tensors that Keras' stateless scopes give it in
place of variables are those of the trace in which it was called first: in a later trace its layers would compute with
other parameters than the worker's, and get no gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import FunctionType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

LIBRARIES = ("keras.", "tensorflow.")
"""Beginnings of the names of modules whose plain functions are called as they are: they refer to no variable."""

_tracing = threading.local()


@contextmanager
def inlined_functions() -> Iterator[None]:
    """Context manager in which calls of `tf.function`s, on this thread, execute their Python functions."""
    _install()
    before = getattr(_tracing, "is_on", False)
    _tracing.is_on = True
    try:
        yield
    finally:
        _tracing.is_on = before


@cache
def _install() -> None:
    """TensorFlow has no such context: `tf.config.run_functions_eagerly` is one of the process, without AutoGraph."""
    call = Function.__call__

    def inlined(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = self._python_function
        is_library = str(getattr(function, "__module__", "")).startswith(LIBRARIES)
        # A layer, or a method of one, is of the library, too, and refers to variables.
        if not getattr(_tracing, "is_on", False) or (is_library and isinstance(function, FunctionType)):
            return call(self, *args, **kwargs)
        args, kwargs = _converted((_of_signature(self.input_signature, args), kwargs))
        if is_library or not self._autograph:
            return tf.nest.map_structure(_result, function(*args, **kwargs))
        # In the trace around it, which needs no conversion, it is off.
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
            converted = autograph_util.py_func_from_autograph(function, self._experimental_autograph_options)
            return tf.nest.map_structure(_result, converted(*args, **kwargs))

    Function.__call__ = inlined


def _of_signature(signature: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Positional arguments with the types of an `input_signature`, as far as there is one."""

    def typed(spec: Any, value: Any) -> Any:
        return tf.convert_to_tensor(value, spec.dtype) if isinstance(spec, tf.TensorSpec) else value

    given = tuple(signature or ())[: len(args)]
    return (*map(partial(tf.nest.map_structure, typed), given, args), *args[len(given) :])


def _converted(values: Any) -> Any:
    """Arrays as tensors, as a `tf.function` takes them."""
    return tf.nest.map_structure(_array, values)


def _array(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _result(value: Any) -> Any:
    """Numbers and arrays as tensors, as a `tf.function` returns them."""
    return tf.convert_to_tensor(value) if isinstance(value, bool | int | float | np.ndarray | np.generic) else value
