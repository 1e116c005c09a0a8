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
        is_whole: Whether there is one piece only, which this process's own optimizer changes.

    Attributes:
        pieces: float32 variables, vectors that are together `[layout.parameters.size]`.
        values: The value of each piece.
    """

    def __init__(self, layout: Layout, is_whole: bool) -> None:
        found = [bucket for shard in range(layout.num_ps) for bucket in buckets(layout.parameters, shard)]
        sizes = [layout.parameters.size] if is_whole else [bucket.size for bucket in found]
        self.pieces = [local_variable(f"parameters_{at}", [size], tf.float32) for at, size in enumerate(sizes)]
        self.values = [piece.read_value() for piece in self.pieces]

    def assign(self, received: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Sets them.

        Args:
            received: As many vectors as there are pieces, each as large as its piece.
        """
        return [piece.assign(value, read_value=False) for piece, value in zip(self.pieces, received, strict=True)]
