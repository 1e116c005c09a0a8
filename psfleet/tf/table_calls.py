"""Calls of a ps's embedding tables from graphs: operations that run Python functions of the ps's process.

An operation `PyFunc` finds its function by a token in the process that runs it, wherever its graph was built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from psfleet.layout.embedding import EmbeddingSpec

READ, STAGE, APPLY = "psfleet_read_rows", "psfleet_stage_rows", "psfleet_apply_rows"
DROP = "psfleet_drop_rows"


class TableServer(Protocol):
    """What a ps does for these operations. `name` is that of the shard, see `shard_name`; all arrays are NumPy's.

    No error may be one of those that TensorFlow takes for the program's (py_func.cc): ValueError, TypeError,
    NotImplementedError, MemoryError.
    """

    def read(self, name: bytes, table: np.int32, ids: np.ndarray, at_step: np.int64) -> np.ndarray:
        """Rows of the table of an index: float32 `[n, width]`."""

    def stage(self, name: bytes, worker: np.int32, number: np.int64, *gradients: np.ndarray) -> np.int64:
        """Keeps the gradients of a worker until the shard admits or drops a push of its number; their ticket."""

    def apply(
        self, name: bytes, tickets: np.ndarray, step: np.int64, rates: np.ndarray, factor: np.float32
    ) -> np.int32:
        """Applies the mean of the staged gradients of tickets."""

    def drop(self, name: bytes, worker: np.int32, number: np.int64) -> np.int32:
        """Discards the staged gradients of a worker and number."""


def shard_name(container: str, shard: int) -> str:
    """The name of a shard among those that a ps has had."""
    return f"{container}/shard_{shard}"


def serve(server: TableServer) -> None:
    """Has the operations that run in this process call a server, of which the caller keeps a reference."""
    # The registry of tf.py_function, which has no public call to choose the token; it keeps weak references.
    functions = script_ops._py_funcs._funcs
    for token, call in ((READ, server.read), (STAGE, server.stage), (APPLY, server.apply), (DROP, server.drop)):
        functions[token] = _KEPT[token] = _Function(call)


def read_rows(name: str, table: int, spec: EmbeddingSpec, ids: tf.Tensor, at_step: tf.Tensor) -> tf.Tensor:
    """Rows on the ps of the current device: float32 `[n, width]`.

    Args:
        name: Of the shard.
        table: Index of the table in `Layout.embeddings`.
        ids: int64 `[n]`, of rows of this ps.
        at_step: int64 scalar, the local step; a shard that is one step ahead returns what it had before, if it keeps
            that.
    """
    (rows,) = tf.raw_ops.PyFunc(input=[name, np.int32(table), ids, at_step], token=READ, Tout=[tf.float32])
    return tf.ensure_shape(rows, [None, spec.width])


def stage_rows(
    name: str, worker: int, number: tf.Tensor, gradients: Sequence[tuple[tf.Tensor, tf.Tensor]]
) -> tf.Tensor:
    """Sends the gradients of rows to the ps of the current device, ahead of the push that they belong to.

    Args:
        name: Of the shard.
        worker: Index of the worker.
        number: int64 scalar, of the gradient; in sync mode the local step.
        gradients: Of each table: ids of rows of this ps, int64 `[n]`, and gradients, float32 `[n, width]`.

    Returns:
        Their ticket on the ps, int64 `[1]`, which goes with the push: so the rows of a process that was replaced, and
        sends them late, do not enter the push of its successor.
    """
    tensors = [tensor for pair in gradients for tensor in pair]
    (ticket,) = tf.raw_ops.PyFunc(input=[name, np.int32(worker), number, *tensors], token=STAGE, Tout=[tf.int64])
    return tf.reshape(ticket, [1])


def apply_rows(
    name: str, tickets: tf.Tensor, step: tf.Tensor, rates: tf.Tensor, factor: tf.Tensor | float = 1.0
) -> tf.Operation:
    """Updates the tables of a shard, on its own ps.

    Args:
        name: Of the shard.
        tickets: int64 `[n]`, of the gradients that are averaged.
        step: int64 scalar, the global step before the update.
        rates: float32 `[number of tables]`, the learning rate of each.
        factor: float32 scalar, multiplies the gradients.
    """
    (done,) = tf.raw_ops.PyFunc(input=[name, tickets, step, rates, factor], token=APPLY, Tout=[tf.int32])
    operation: tf.Operation = done.op
    return operation


def drop_rows(name: str, worker: tf.Tensor, number: tf.Tensor) -> tf.Operation:
    """Discards the gradients of rows that came with a push that the shard drops, on its own ps.

    Args:
        name: Of the shard.
        worker: int32 scalar.
        number: int64 scalar, of the gradient.
    """
    (done,) = tf.raw_ops.PyFunc(input=[name, worker, number], token=DROP, Tout=[tf.int32])
    operation: tf.Operation = done.op
    return operation


class _Function:
    """A function whose results are a list, as TensorFlow takes them."""

    def __init__(self, call: object) -> None:
        self._call = call

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        return [self._call(*arrays)]  # type: ignore[operator]


_KEPT: dict[str, _Function] = {}
