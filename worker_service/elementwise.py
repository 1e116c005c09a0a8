"""Decides whether an update of an optimizer works on each element of a vector by itself.

Its graph may have only operations that do, on vectors and numbers. That it is also what Keras does with the model's
tensors, whatever their shapes and names, is tried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf.traced_update import PARAMETERS, TracedUpdate, Values, scalar_node, slot_node
from worker_service.optimizer_trace import OptimizerTrace

_ARITHMETIC = """
Abs Add AddN AddV2 Div DivNoNan FloorDiv FloorMod Inv Mod Mul MulNoNan Neg Pow RealDiv Reciprocal Rsqrt Sign Sqrt Square
SquaredDifference Sub TruncateDiv TruncateMod Xdivy Xlog1py Xlogy
"""
_FUNCTIONS = """
Acos Acosh Asin Asinh Atan Atan2 Atanh Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 LeakyRelu Lgamma Log Log1p Relu
Relu6 Selu Sigmoid Sin Sinh Softplus Softsign Tan Tanh
"""
_LIMITS = "Ceil ClipByValue Floor Maximum Minimum Rint Round Select SelectV2"
_LOGIC = """
ApproximateEqual Equal Greater GreaterEqual IsFinite IsInf IsNan Less LessEqual LogicalAnd LogicalNot LogicalOr NotEqual
"""
_NO_COMPUTATION = "Cast Identity IdentityN NoOp OnesLike Placeholder PreventGradient StopGradient ZerosLike"
_OPERATIONS = frozenset(f"{_ARITHMETIC} {_FUNCTIONS} {_LIMITS} {_LOGIC} {_NO_COMPUTATION}".split())
_FILLS = ("Fill", "BroadcastTo")
_STEPS = 4
_RATE = 0.5
"""Large: an option that only some tensors have, such as a weight decay of 0.004, must show."""
_TOLERANCE = 1e-5


def offending_node(graph_def: bytes) -> str:
    """The first operation of a graph that may combine elements, for a message; empty if there is none.

    Args:
        graph_def: A serialized `tf.compat.v1.GraphDef`.
    """
    nodes = {node.name: node for node in v1.GraphDef.FromString(graph_def).node}
    for node in nodes.values():
        sources = [nodes[text.partition(":")[0]] for text in node.input if not text.startswith("^")]
        if node.op in _FILLS:
            dimensions = sources[0 if node.op == "Fill" else 1]
            if dimensions.op != "Shape":
                return f"its update makes a tensor of fixed shape ({node.name}), expected what ops.zeros_like makes"
        elif node.op == "Const":
            shape = [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]
            if shape not in ([], [1]):
                return f"its update has a constant of shape {shape}, expected numbers, or what ops.zeros_like makes"
        elif node.op == "Shape":
            continue
        elif node.op not in _OPERATIONS:
            return f"its update has the operation {node.op} ({node.name}), expected those that leave elements apart"
        if node.op not in _FILLS and any(source.op == "Shape" for source in sources):
            return f"its update computes with the number of elements ({node.name})"
    return ""


def difference(trace: OptimizerTrace, update: TracedUpdate) -> str:
    """How steps of the update differ from those of Keras on the model's tensors, for a message; empty: they do not."""
    random = np.random.default_rng(1)
    optimizer, copies = trace.optimizer, trace.copies
    optimizer.learning_rate = _RATE
    flat = _FlatSteps(update, _joined([copy.numpy() for copy in copies]))
    for step in range(1, _STEPS + 1):
        sizes = 10.0 ** random.uniform(-3, 1, len(copies))
        gradients = [
            (random.normal(size=copy.shape) * size).astype(np.float32) for copy, size in zip(copies, sizes, strict=True)
        ]
        optimizer.apply_gradients([(tf.constant(g), copy) for g, copy in zip(gradients, copies, strict=True)])
        found = np.split(flat.advance(_joined(gradients)), np.cumsum([g.size for g in gradients])[:-1])
        for copy, values in zip(copies, found, strict=True):
            expected = copy.numpy().reshape(-1)
            if not np.allclose(values, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                distance = np.abs(values - expected).max()
                return (
                    f"after update {step} of random values, {copy.path} differs by {distance:.2g} from the same "
                    "elements in a vector"
                )
    return ""


class _FlatSteps:
    """Steps of an update on a vector."""

    def __init__(self, update: TracedUpdate, parameters: np.ndarray) -> None:
        self._values: dict[str, Any] = Values(
            parameters,
            {name: np.full_like(parameters, value) for name, value in update.slots.items()},
            {name: np.array(scalar.initial, scalar.dtype) for name, scalar in update.scalars.items()},
        ).by_node()

        def step(gradient: tf.Tensor, values: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            slots = {name: values[slot_node(name)] for name in update.slots}
            scalars = {name: values[scalar_node(name)] for name in update.scalars}
            return update.apply(gradient, tf.constant(_RATE), Values(values[PARAMETERS], slots, scalars)).by_node()

        self._step = tf.function(step, autograph=False)

    def advance(self, gradient: np.ndarray) -> np.ndarray:
        """The parameters after the next update: `[size]`, like the gradient."""
        values = {node: tf.constant(value) for node, value in self._values.items()}
        self._values = {node: value.numpy() for node, value in self._step(tf.constant(gradient), values).items()}
        parameters: np.ndarray = self._values[PARAMETERS]
        return parameters


def _joined(tensors: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([tensor.reshape(-1) for tensor in tensors])
