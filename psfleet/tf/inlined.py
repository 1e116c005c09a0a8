"""Inlines the `tf.function`s of a model into the graph that calls them.

A `tf.function` caches the graph of its first call. In a Keras stateless scope, that graph captures the tensors that
replace the variables at that time. In a later trace its layers would compute with stale parameters and get no gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.eager.polymorphic_function.function_type_utils import canonicalize_function_inputs
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

LIBRARIES = ("keras.", "tensorflow.")
"""Prefixes of modules whose plain functions are not inlined: they use no variables of a model."""
PLAIN = (bool, int, float, str, bytes, np.ndarray, np.generic)
"""Types of results that a `tf.function` converts to tensors."""

_tracing = threading.local()


@contextmanager
def inlined_functions() -> Iterator[None]:
    """Context manager in which this thread's calls of `tf.function`s in graphs run their Python functions."""
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
        # A Keras layer or its method has such a module, too, but uses variables.
        is_inlined = getattr(_tracing, "is_on", False) and not (is_library and isinstance(function, FunctionType))
        if not is_inlined or tf.executing_eagerly():
            return call(self, *args, **kwargs)
        bound = canonicalize_function_inputs(args, kwargs, self._function_type, self._default_values)
        given, keywords = tf.nest.map_structure(_argument, (bound.args, bound.kwargs))
        if is_library or not self._autograph:
            return tf.nest.map_structure(_result, function(*given, **keywords))
        # The enclosing trace has turned AutoGraph off.
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
            converted = autograph_util.py_func_from_autograph(function, self._experimental_autograph_options)
            return tf.nest.map_structure(_result, converted(*given, **keywords))

    Function.__call__ = inlined


def _argument(value: Any) -> Any:
    """Converts an array to a tensor, as a `tf.function` does with its arguments."""
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic) else value


def _result(value: Any) -> Any:
    """Converts a number, a string or an array to a tensor, as a `tf.function` does with its results."""
    return tf.convert_to_tensor(value) if isinstance(value, PLAIN) else value
