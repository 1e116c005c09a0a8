"""Lookup tables that a Keras model's forward pass reads, as constants of a worker's graph.

`StringLookup`, `IntegerLookup` and `TextVectorization` keep their vocabulary in a table of the process that built the
model. A worker's session has a copy of it, which it initializes when it opens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.python.eager.context import eager_mode

from psfleet.checkpoint.keras_names import numbered
from psfleet.layout import Tables
from worker_service.frontends.graph_import import SCOPE

_READS = frozenset(("LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2"))


def is_read_table(placeholder: tf.Tensor) -> bool:
    """Whether a captured resource is a table that the graph only reads.

    A call of a function or a loop that gets the table does not count: it could change it.

    Args:
        placeholder: The capture inside the graph.
    """
    users = placeholder.consumers()
    return any(user.type == "LookupTableFindV2" for user in users) and all(user.type in _READS for user in users)


def is_empty(table: Any) -> bool:
    """Whether a table has no keys, because it was never filled: it could neither be read nor copied.

    Args:
        table: Its handle, an eager tensor.
    """
    with eager_mode():
        return int(tf.raw_ops.LookupTableSizeV2(table_handle=table)) == 0


def contents(layers: Iterable[Any], captures: Sequence[tuple[Any, tf.Tensor]]) -> Tables:
    """The tables that a graph captures: the name of the layer that has each, and a digest of what it holds.

    The digest is that of the same keys and values in any other process. Layers of one name are numbered.

    Args:
        layers: Of the model, a layer before those inside it.
        captures: Pairs of a captured tensor and its placeholder in the graph.
    """
    owners = list(layers)
    names, digests = list[str](), list[str]()
    for captured, placeholder in captures:
        if captured.dtype != tf.resource:
            continue
        keys, values, key_dtype, value_dtype = _exported(captured, placeholder)
        # Hash tables of two processes return their entries in different orders.
        pairs = sorted(zip(keys.tolist(), values.tolist(), strict=True), key=repr)
        names.append(next((layer.name for layer in owners if _has_table(layer, captured)), "without a name"))
        digests.append(_digest((key_dtype.name, value_dtype.name, pairs)))
    return tuple(zip(numbered(names), digests, strict=True))


def _has_table(layer: Any, handle: Any) -> bool:
    """Whether a layer, or the lookup layer inside a `TextVectorization`, has the table of a handle."""
    attributes = [*vars(layer).values(), *vars(getattr(layer, "_lookup_layer", layer)).values()]
    return any(getattr(attribute, "resource_handle", None) is handle for attribute in attributes)


def _exported(captured: Any, placeholder: tf.Tensor) -> tuple[np.ndarray, np.ndarray, tf.DType, tf.DType]:
    """Keys `[n]` and values `[n]` of a captured table, and their types in the lookups that read it."""
    find = next(user for user in placeholder.consumers() if user.type == "LookupTableFindV2")
    key_type, value_type = find.get_attr("Tin"), find.get_attr("Tout")
    with eager_mode():
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=captured, Tkeys=key_type, Tvalues=value_type)
        return keys.numpy(), values.numpy(), tf.as_dtype(key_type), tf.as_dtype(value_type)


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def constant(captured: Any, placeholder: tf.Tensor) -> tf.Tensor:
    """What takes the place of a captured tensor in the default graph, a v1 graph: its value, or a copy of a table.

    The table's initializer is in the collection TABLE_INITIALIZERS.
    """
    if captured.dtype != tf.resource:
        return tf.constant(captured.numpy())
    keys, values, key_dtype, value_dtype = _exported(captured, placeholder)
    # Tables are resources of the worker's server, which keeps them: the next generation's graph finds this one again.
    # `tf.lookup.StaticHashTable` would make another one, under a random name, for each graph.
    content = (key_dtype.name, value_dtype.name, keys.tolist(), values.tolist())
    table: tf.Tensor = tf.raw_ops.HashTableV2(
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        shared_name=f"{SCOPE}_table_{_digest(content)}",
    )
    initializer = tf.raw_ops.InitializeTableV2(
        table_handle=table, keys=tf.constant(keys, key_dtype), values=tf.constant(values, value_dtype)
    )
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, initializer)
    return table
