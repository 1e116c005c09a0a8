"""Which variables of a graph no operation can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_RESOURCE_READS = frozenset(
    ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape")
)
_REFERENCE_READS = frozenset(("Identity", "IsVariableInitialized"))
"""The output of Identity is no reference any more: what reads it cannot assign the variable."""
_PASSES = frozenset(("Identity", "Switch", "Enter"))
"""Operations whose outputs are the handle that they get."""
_CALLS = {
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
    "While": 0,
    "StatelessWhile": 0,
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
}
"""Operations that call functions, and which of their inputs is the first argument of these."""


def is_constant(variable: Any) -> bool:
    """Whether nothing in the variable's graph can change it, its initializer aside.

    Every operation counts as one that can, unless it is known to read only: a call of a function or a loop that gets
    the variable's handle, and an assignment that no step runs, too.

    Args:
        variable: Of `tf.compat.v1.get_variable`, a resource variable or an older reference variable.
    """
    handle = variable.op.outputs[0]
    reads = _RESOURCE_READS if handle.dtype == tf.resource else _REFERENCE_READS
    return all(user.type in reads or user is variable.initializer for user in handle.consumers())


def is_only_read(variable: Any) -> bool:
    """Like `is_constant`, but follows the handle of a resource variable into branches, loops and functions."""
    if variable.op.outputs[0].dtype != tf.resource:
        return is_constant(variable)
    graph_def = variable.graph.as_graph_def()
    functions = {function.signature.name: function for function in graph_def.library.function}
    nodes = [node for node in graph_def.node if node.name != variable.initializer.name]
    return _is_only_read(variable.op.name, nodes, functions)


def _is_only_read(name: str, nodes: Sequence[Any], functions: Mapping[str, Any]) -> bool:
    """Whether the nodes of a graph or function only read the variable whose handle a node or an argument is.

    Args:
        name: Of the node or argument.
        nodes: Each a `NodeDef`.
        functions: Each a `FunctionDef`, by name.
    """
    inputs = [(node, at) for node in nodes for at, text in enumerate(node.input) if text.partition(":")[0] == name]
    return all(_only_reads(node, at, nodes, functions) for node, at in inputs)


def _only_reads(node: Any, at: int, nodes: Sequence[Any], functions: Mapping[str, Any]) -> bool:
    """Whether a node only reads the variable whose handle is its input number `at`."""
    if node.op in _RESOURCE_READS:
        return True
    if node.op in _PASSES:
        return _is_only_read(node.name, nodes, functions)
    # The results of a call may be the handle, too.
    if node.op not in _CALLS or tf.resource.as_datatype_enum in node.attr["Tout"].list.type:
        return False
    called = [each.name for value in node.attr.values() for each in (value.func, *value.list.func) if each.name]
    bodies = [functions[name] for name in called]
    argument = at - _CALLS[node.op]
    return all(_is_only_read(body.signature.input_arg[argument].name, body.node_def, functions) for body in bodies)
