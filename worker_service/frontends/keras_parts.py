"""The parts of a Keras model: layers remember in which part they were made, and are traced on its device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import keras
import tensorflow as tf

from psfleet.tf.parts import current_part, has_devices, part

_PART = "_psfleet_part"
"""Attribute of an operation of Keras, which layers are too: the number of its part."""


@cache
def remember_parts() -> None:
    """Has Keras' operations belong to the parts in which they are made; they do nothing else without parts.

    Keras has no hook for what is made, nor for what a functional model calls. The functions remain for the life of the
    process: another thread may call a model.
    """
    make, run = keras.Operation.__new__, keras.Operation.__call__

    def new(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        made = make(cls, *args, **kwargs)
        _assign(made)
        return made

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() and _PART not in vars(self):
            _assign(self)
        number = vars(self).get(_PART)
        if number is None:
            return run(self, *args, **kwargs)
        with part(number):
            return run(self, *args, **kwargs)

    keras.Operation.__new__ = staticmethod(new)
    keras.Operation.__call__ = call


def forget_part(model: keras.Model) -> None:
    """Has a model itself belong to no part: it contains the layers of all of them."""
    vars(model).pop(_PART, None)


def gradients(tape: tf.GradientTape, loss: tf.Tensor, parameters: Sequence[tf.Tensor]) -> list[Any]:
    """The gradients of a loss, which the tape has recorded; with parts, each operation of them on its part.

    The operations of a tape's gradients have no devices; those of `tf.gradients` are colocated with the operations that
    they are the gradients of.
    """
    found: list[Any] = tf.gradients(loss, parameters) if has_devices() else tape.gradient(loss, parameters)
    return found


def _assign(made: Any) -> None:
    number = current_part()
    if number is not None:
        # Not setattr: layers track attributes, and a layer is not initialized yet.
        object.__setattr__(made, _PART, number)
