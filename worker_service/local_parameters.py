"""A worker's copy of all parameters."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.layout import Layout
from psfleet.layout.buckets import buckets
from worker_service.loss_step import local_variable


class LocalParameters:
    """The vector of all parameters, in the default graph: in pieces, of which each has the tensors of one message.

    A piece takes the memory of the bucket that arrived. One variable for all would need a copy of all buckets.

    Args of the constructor:
        is_whole: Whether there is one piece only: its own optimizer changes it, or several calls of a session use it.

    Attributes:
        pieces: float32 variables, vectors that are together `[layout.parameters.size]`.
        values: The value of each piece.
    """

    def __init__(self, layout: Layout, is_whole: bool) -> None:
        found = [bucket for shard in range(layout.num_ps) for bucket in buckets(layout.parameters, shard)]
        sizes = [layout.parameters.size] if is_whole else [bucket.size for bucket in found]
        self.pieces = [local_variable(f"parameters_{at}", [size], tf.float32) for at, size in enumerate(sizes)]
        self.values = [piece.read_value() for piece in self.pieces]

    def joined(self, buckets: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """The value of each piece, of what was received from all ps."""
        return [tf.concat(buckets, 0)] if len(self.pieces) < len(buckets) else buckets

    def assign(self, received: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Sets them.

        Args:
            received: See `joined`.
        """
        return [piece.assign(value, read_value=False) for piece, value in zip(self.pieces, received, strict=True)]
