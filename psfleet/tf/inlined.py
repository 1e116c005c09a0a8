"""Has the `tf.function`s of a model be a part of the graph in which they are called.

A `tf.function` keeps a graph of its first call for later ones. The tensors that Keras' stateless scopes give it in
place of variables are those of the trace in which it was called first: in a later trace its layers would compute with
other parameters than the worker's, and get no gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

LIBRARIES = ("keras.", "tensorflow.")
"""Beginnings of the names of modules whose functions are called as they are: they refer to no variable."""

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
        if not getattr(_tracing, "is_on", False) or str(getattr(function, "__module__", "")).startswith(LIBRARIES):
            return call(self, *args, **kwargs)
        if not self._autograph:
            return function(*args, **kwargs)
        # In the trace around it, which needs no conversion, it is off.
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
            converted = autograph_util.py_func_from_autograph(function, self._experimental_autograph_options)
            return converted(*args, **kwargs)

    Function.__call__ = inlined
