"""The parts of a Keras model: layers remember in which part they were made, and are traced on its device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import keras
import tensorflow as tf

from psfleet.job.job import Job
from psfleet.job.program import KerasProgram
from psfleet.tf import program_data
from psfleet.tf.parts import current_part, has_devices, part

_PART = "_psfleet_part"
"""Attribute of an operation of Keras, which layers are too: the number of its part."""


def built_model(program: KerasProgram, job: Job) -> keras.Model:
    """The model of a program, see `program_data.built_model`; its operations belong to the parts of the job."""
    if job.fleet.parts > 1:
        _assign_new_operations()
    model = program_data.built_model(program, job)
    # The model itself contains the layers of all parts.
    vars(model).pop(_PART, None)
    return model


@cache
def _assign_new_operations() -> None:
    """From now on Keras assigns operations to the part in which they are made, and calls them there.

    Keras has no hook for what is made, nor for what a functional model calls. The functions remain for the life of the
    process, because another thread may call a model; outside of parts they do what they replace.
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
