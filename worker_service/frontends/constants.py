"""Which variables of a graph no operation can change."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_RESOURCE_READS = frozenset(
    ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape")
)
_REFERENCE_READS = frozenset(("Identity", "IsVariableInitialized"))
"""The output of Identity is no reference any more: what reads it cannot assign the variable."""


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
