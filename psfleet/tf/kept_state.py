"""Calls a model to build it, without what a call changes: counters, moving averages, seeds.

Keras' own fit builds a model by a symbolic call, which changes nothing. But values that a layer sets in `build` are
lost in it, and a layer that needs an array there fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.variables import Variable

_building = threading.local()


@contextmanager
def kept_state() -> Iterator[None]:
    """Context manager after which variables have the values that they had before calls of layers assigned them.

    What layers assign while they are built stays.
    """
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
    """Keras has no hook for assignments. The functions remain, and outside of the context do what they replace."""
    assign, maybe_build = Variable.assign, keras.Layer._maybe_build

    def assigned(self: Any, value: Any) -> Any:
        saved = getattr(_building, "saved", None)
        if saved is not None and not _building.depth and id(self) not in saved and not in_stateless_scope():
            saved[id(self)] = self, np.array(self.numpy())
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
