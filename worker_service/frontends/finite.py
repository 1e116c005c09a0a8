"""Ends a step whose loss, gradients or state are not finite, with an error that names the tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.layout import Layout, TensorSpec
from psfleet.layout.buckets import specs_of_loss
from worker_service.frontends.interface import TrainingGraph

LOSS = "the loss"
MESSAGE = re.compile(r"psfleet: (?P<what>.*?) : Tensor had (?P<values>.*?) values")
"""CheckNumerics' error (check_numerics_op.cc) with the messages of this module."""


def checked(training: TrainingGraph, layout: Layout, index: int = 0) -> TrainingGraph:
    """The step with a loss, gradients and state that raise InvalidArgumentError where they are not finite.

    The cost is one sum over each tensor: CheckNumerics itself takes ten times as long. A sum that exceeds
    float32 counts as infinite. Each gradient waits only for its own check, and all checks for that of the loss, which
    is the cause if both fail.

    Args:
        index: Of the loss.
    """
    loss = tf.debugging.check_numerics(training.loss, f"psfleet: {LOSS}")
    with tf.control_dependencies([loss]):
        gradients = _checked("the gradient of ", specs_of_loss(layout.parameters, index), training.gradients)
        new_state = _checked("state ", layout.state.specs, training.new_state)
        tables = tuple(
            replace(table, values=_finite(f"psfleet: the gradient of table {table.spec.key}", table.values))
            for table in training.tables
        )
    return replace(training, loss=loss, gradients=gradients, new_state=new_state, tables=tables)


def failure(message: str) -> str | None:
    """Which tensor of `checked` was not finite, from TensorFlow's error message; None for any other error."""
    found = MESSAGE.search(message)
    if found is None:
        return None
    if found["what"] == LOSS:
        return f"{LOSS} is {'NaN' if 'NaN' in found['values'] else 'infinite'}, expected a finite number"
    return f"{found['what']} is NaN or infinite, expected finite numbers"


def checked_values(program: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Initial values of parameters and state.

    Raises:
        ProgramError: One has an element that is not finite.
    """
    for name, value in values.items():
        if np.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all():
            raise ProgramError(
                f"program {program!r}: the initial value of {name} is NaN or infinite, expected finite numbers"
            )
    return dict(values)


def _checked(what: str, specs: Sequence[TensorSpec], tensors: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    return tuple(
        _finite(f"psfleet: {what}{spec.name}", tensor) if tensor.dtype.is_floating and spec.is_saved else tensor
        for spec, tensor in zip(specs, tensors, strict=True)
    )


def _finite(message: str, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, once its sum is known to be finite."""
    # The sum of many finite numbers of 16 bits can be infinite in 16 bits.
    total = tf.reduce_sum(tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor)
    with tf.control_dependencies([tf.debugging.check_numerics(total, message)]):
        return tf.identity(tensor)
