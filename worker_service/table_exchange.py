"""A worker's end of embedding tables: reads rows of every ps in a step, and stages their gradients with a push."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.layout import Layout
from psfleet.tf.table_calls import read_rows, shard_name, stage_rows
from worker_service.frontends.table_rows import TableGradient


class RowsOnPs:
    """Rows as the ps have them; see `Rows`.

    Args of the constructor:
        container: The resource container of the generation.
        at_step: int64 scalar, the local step.
    """

    def __init__(self, layout: Layout, container: str, at_step: tf.Tensor) -> None:
        self._layout = layout
        self._container = container
        self.at_step = at_step

    def read(self, table: int, ids: tf.Tensor, at_step: tf.Tensor) -> tf.Tensor:
        """See `Rows`."""
        spec, num_ps = self._layout.embeddings[table], self._layout.num_ps
        places, rows = [], []
        for shard in range(num_ps):
            own, place = ids_of(shard, num_ps, ids)
            with tf.device(f"/job:ps/task:{shard}"):
                rows.append(read_rows(shard_name(self._container, shard), table, spec, own, at_step))
            places.append(place)
        return rows[0] if num_ps == 1 else tf.reshape(tf.dynamic_stitch(places, rows), [-1, spec.width])


def ids_of(shard: int, num_ps: int, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids of the rows of one ps, int64 `[n]`, and their places among all ids, int32 `[n]`."""
    if num_ps == 1:
        return ids, tf.range(tf.size(ids))
    places = tf.cast(tf.reshape(tf.where(tf.equal(ids % num_ps, shard)), [-1]), tf.int32)
    return tf.gather(ids, places), places


def staged(
    name: str, shard: int, num_ps: int, index: int, number: tf.Tensor, tables: Sequence[TableGradient], own_device: str
) -> list[tf.Tensor]:
    """Sends the gradients of the rows of one ps to it, whose device is the current one; none without tables.

    Args:
        name: Of the shard.
        index: Of this worker.
        number: int64 scalar, see `stage_rows`.
        own_device: This worker's device.

    Returns:
        The ticket of `stage_rows`, in a list; without tables an empty one.
    """
    if not tables:
        return []
    with tf.device(own_device):
        parts = [(table, *ids_of(shard, num_ps, table.ids)) for table in tables]
        sent = [(ids, table.values if num_ps == 1 else tf.gather(table.values, at)) for table, ids, at in parts]
    return [stage_rows(name, index, number, sent)]
