"""Lookup tables that a Keras model's forward pass reads, as constants of a worker's graph.

`StringLookup`, `IntegerLookup` and `TextVectorization` keep their vocabulary in a table of the process that built the
model. A worker's session has a copy of it, which it initializes when it opens.
"""

from __future__ import annotations

import hashlib
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.python.eager.context import eager_mode

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


def constant(captured: Any, placeholder: tf.Tensor) -> tf.Tensor:
    """What takes the place of a captured tensor in the default graph, a v1 graph: its value, or a copy of a table.

    The table's initializer is in the collection TABLE_INITIALIZERS.
    """
    if captured.dtype != tf.resource:
        return tf.constant(captured.numpy())
    find = next(user for user in placeholder.consumers() if user.type == "LookupTableFindV2")
    with eager_mode():
        keys, values = tf.raw_ops.LookupTableExportV2(
            table_handle=captured, Tkeys=find.get_attr("Tin"), Tvalues=find.get_attr("Tout")
        )
        keys, values = keys.numpy(), values.numpy()
    key_dtype, value_dtype = tf.as_dtype(find.get_attr("Tin")), tf.as_dtype(find.get_attr("Tout"))
    # Tables are resources of the worker's server, which keeps them: the next generation's graph finds this one again.
    # `tf.lookup.StaticHashTable` would make another one, under a random name, for each graph.
    content = (key_dtype.name, value_dtype.name, keys.tolist(), values.tolist())
    table: tf.Tensor = tf.raw_ops.HashTableV2(
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        shared_name=f"{SCOPE}_table_{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}",
    )
    initializer = tf.raw_ops.InitializeTableV2(
        table_handle=table, keys=tf.constant(keys, key_dtype), values=tf.constant(values, value_dtype)
    )
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, initializer)
    return table
