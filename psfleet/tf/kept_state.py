"""Restores the state that a call changes when it builds a model: counters, moving averages, seeds.

Keras' `fit` builds a model by a symbolic call, which changes no state. But a symbolic call loses values that a layer
assigns in `build`, and fails if `build` needs a NumPy array.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.variables import Variable

_building = threading.local()


@contextmanager
def kept_state() -> Iterator[None]:
    """Context manager that restores the variables that layers assign in calls; assignments in `build` are kept."""
    _install()
    _building.saved, _building.depth = {}, 0
    try:
        yield
    finally:
        saved, _building.saved = _building.saved, None
        for variable, value in saved.values():
            variable.assign(value)


@cache
def _install() -> None:
    """Patches Keras, which has no hook for assignments. Outside of the context the patches do nothing else."""
    assign, maybe_build = Variable.assign, keras.Layer._maybe_build

    def assigned(self: Any, value: Any) -> Any:
        saved = getattr(_building, "saved", None)
        if saved is not None and not _building.depth and id(self) not in saved and not in_stateless_scope():
            # Not `self.numpy()`, which a layer that computes in bfloat16 rounds; also from within a graph.
            with tf.init_scope():
                saved[id(self)] = self, np.array(self._value.numpy())
        return assign(self, value)

    def built(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_building, "saved", None) is None:
            return maybe_build(self, *args, **kwargs)
        _building.depth += 1
        try:
            return maybe_build(self, *args, **kwargs)
        finally:
            _building.depth -= 1

    Variable.assign = assigned
    keras.Layer._maybe_build = built
