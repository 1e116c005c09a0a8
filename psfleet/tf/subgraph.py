"""A part of a graph, to be imported into another one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tensorflow.compat.v1 as v1

CLASS = "_class"
"""Attribute of a node that names those beside which it is placed."""


def subgraph(graph_def: Any, wanted: Collection[str], on: Callable[[str], str]) -> Any:
    """The nodes of a `GraphDef` with some names, and those that they need.

    Like `tf.compat.v1.graph_util.extract_sub_graph`, which logs that it is deprecated, copies each node twice, and
    keeps the nodes beside which others are placed.

    Args:
        on: Of the device of a node, the one that it gets.

    Returns:
        A `GraphDef`, with all functions.
    """
    nodes = {node.name: node for node in graph_def.node}
    waiting, needed = list(wanted), set(wanted)
    while waiting:
        inputs = {text.lstrip("^").partition(":")[0] for text in nodes[waiting.pop()].input}
        waiting += inputs - needed
        needed |= inputs
    found = v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    found.node.extend(node for node in graph_def.node if node.name in needed)
    for node in found.node:
        if CLASS in node.attr:
            beside = node.attr[CLASS].list.s
            beside[:] = [name for name in beside if name.decode().removeprefix("loc:@") in needed]
    for node in (*found.node, *(each for function in found.library.function for each in function.node_def)):
        node.device = on(node.device)
    return found
