"""Finds parameters that a function with a custom gradient captures instead of taking them as arguments."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from psfleet.errors import ProgramError

OVERRIDE, PREFIX = "_gradient_op_type", b"CustomGradient-"
"""Attribute of the operation that `tf.custom_gradient` makes in a graph, and the beginning of its value."""
STOPS = ("StopGradient", "PreventGradient")
"""Operations through which no gradient flows."""


def check_custom_gradients(program: str, loss: tf.Tensor, names: Sequence[str], tensors: Sequence[tf.Tensor]) -> None:
    """Checks a forward pass before its gradient is computed.

    `tf.custom_gradient`, and so `tf.recompute_grad` and `keras.remat`, return gradients for arguments and variables. A
    worker's parameters are tensors: those that such a function captures would get no gradient.

    Args:
        names: Of the parameters, for the message.
        tensors: The parameters.

    Raises:
        ProgramError: Names such a parameter.
    """
    found = {tensor.ref(): name for name, tensor in zip(names, tensors, strict=True)}
    reached = _reached([loss])
    for operation in {each.deref().op for each in reached}:
        if not _is_custom(operation):
            continue
        hidden = next((found[each] for each in _used_inside(operation, reached) if each in found), None)
        if hidden is not None:
            raise ProgramError(
                f"program {program!r}: {hidden} is used inside of a function with a gradient of its own "
                f"({operation.name}), which would not train it; expected no keras.remat, RematScope or "
                "tf.recompute_grad around layers, and with tf.custom_gradient the weights as arguments"
            )


def _is_custom(operation: tf.Operation) -> bool:
    return operation.type == "IdentityN" and operation.node_def.attr[OVERRIDE].s.startswith(PREFIX)


def _used_inside(operation: tf.Operation, reached: set[Any]) -> set[Any]:
    """The tensors that the used results of a function depend on, except its arguments and their ancestors.

    Inputs of the operation are the results, followed by the arguments.
    """
    count = _num_results(operation)
    given = {each.ref() for each in operation.inputs[count:]}
    pairs = zip(operation.inputs[:count], operation.outputs, strict=False)
    return _reached([before for before, after in pairs if after.ref() in reached], given)


def _num_results(operation: tf.Operation) -> int:
    """The number of results, which TensorFlow keeps in its gradient function (custom_gradient.py) only."""
    gradient = inspect.getclosurevars(ops.get_gradient_function(operation)).nonlocals["tape_grad_fn"]
    return int(inspect.getclosurevars(gradient).nonlocals["flat_result_len"])


def _reached(tensors: Sequence[tf.Tensor], ends: Collection[Any] = ()) -> set[Any]:
    """References to some tensors and to their ancestors through which gradients flow.

    Args:
        ends: References to tensors that are left out, with their ancestors.
    """
    waiting = list(tensors)
    found: set[Any] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() not in found and tensor.ref() not in ends:
            found.add(tensor.ref())
            waiting += () if tensor.op.type in STOPS else tensor.op.inputs
    return found
