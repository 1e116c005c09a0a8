"""Copies a graph into the default graph, so that a v1 session runs it inline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from psfleet.tf.parts import has_devices, with_local_inputs

SCOPE = "program"
"""Name scope of the copied operations, and prefix of the resources that they own; numbered after the first copy."""


def transplant(
    source: tf.Graph,
    inputs: Sequence[tuple[tf.Tensor, tf.Tensor]],
    outputs: Sequence[tf.Tensor | tf.Operation],
) -> list[Any]:
    """Copies `source` into the default graph.

    Args:
        source: A graph or the graph of a concrete function; its functions are copied too.
        inputs: Pairs of a placeholder in `source` and the tensor of the default graph that takes its place.
        outputs: Tensors and operations of `source`.

    Returns:
        The copies of `outputs`.
    """
    graph_def = source.as_graph_def()
    scope = tf.compat.v1.get_default_graph().unique_name(SCOPE, mark_as_used=False)
    if has_devices():
        graph_def = with_local_inputs(graph_def)
    for node in graph_def.node:
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = f"{scope}/{node.name}".encode()
        if "frame_name" in node.attr:
            # An executor knows the frame of a loop by its name alone, whatever the prefix of its operations is.
            node.attr["frame_name"].s = f"{scope}/".encode() + node.attr["frame_name"].s
    # An operation may use its value, or only wait for it.
    given = {placeholder.name: tensor for placeholder, tensor in inputs}
    given |= {f"^{placeholder.op.name}": tensor for placeholder, tensor in inputs}
    copies: list[Any] = tf.graph_util.import_graph_def(
        graph_def,
        input_map=given,
        return_elements=[output.name for output in outputs],
        name=scope,
    )
    return copies


def split(items: Sequence[Any], first: int, second: int) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """The first `first` items, the `second` after them, and the rest."""
    return tuple(items[:first]), tuple(items[first : first + second]), tuple(items[first + second :])
