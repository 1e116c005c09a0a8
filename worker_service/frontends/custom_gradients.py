"""Finds parameters that a function with a gradient of its own uses without being given them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.layout import TensorSpec

OVERRIDE, PREFIX = "_gradient_op_type", b"CustomGradient-"
"""Attribute of the operation that `tf.custom_gradient` makes in a graph, and the beginning of its value."""


def check_custom_gradients(
    program: str, loss: tf.Tensor, specs: Sequence[TensorSpec], parameters: Sequence[tf.Tensor]
) -> None:
    """Checks a forward pass before its gradient is computed.

    `tf.custom_gradient`, and by it `tf.recompute_grad` and `keras.remat`, return gradients for arguments and variables.
    A worker's parameters are tensors: those that such a function only refers to would get none.

    Raises:
        ProgramError: Names such a parameter.
    """
    found = {parameter.ref(): spec for spec, parameter in zip(specs, parameters, strict=True)}
    for operation in _custom(loss.graph):
        hidden = next((found[each] for each in _used_inside(operation, loss) if each in found), None)
        if hidden is not None:
            raise ProgramError(
                f"program {program!r}: {hidden.name} is used inside of a function with a gradient of its own "
                f"({operation.name}), which would not train it; expected no keras.remat, RematScope or "
                "tf.recompute_grad around layers, and with tf.custom_gradient the weights as arguments"
            )


def _custom(graph: tf.Graph) -> Iterator[tf.Operation]:
    for operation in graph.get_operations():
        if operation.type == "IdentityN" and operation.node_def.attr[OVERRIDE].s.startswith(PREFIX):
            yield operation


def _used_inside(operation: tf.Operation, loss: tf.Tensor) -> set[object]:
    """References to the tensors on which the results of a function depend, its arguments and what is before them aside.

    The operation has the results, of which somebody uses the outputs, and then the arguments, of which nobody does.
    """
    pairs = list(zip(operation.inputs, operation.outputs, strict=True))
    is_result = [bool(after.consumers()) or after is loss for _, after in pairs]
    given = {before.ref() for (before, _), is_one in zip(pairs, is_result, strict=True) if not is_one}
    waiting = [before for (before, _), is_one in zip(pairs, is_result, strict=True) if is_one]
    seen: set[object] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() not in seen and tensor.ref() not in given:
            seen.add(tensor.ref())
            waiting += tensor.op.inputs
    return seen
