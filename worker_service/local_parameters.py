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
        is_whole: Whether there is one piece only: for an optimizer that changes it, or for steps of several calls, each
            of which would join the tensors in several pieces again.

    Attributes:
        pieces: float32 variables, vectors that are together `[layout.parameters.size]`.
        values: The value of each piece.
    """

    def __init__(self, layout: Layout, is_whole: bool) -> None:
        found = [bucket for shard in range(layout.num_ps) for bucket in buckets(layout.parameters, shard)]
        sizes = [layout.parameters.size] if is_whole else [bucket.size for bucket in found]
        self.pieces = [local_variable(f"parameters_{at}", [size], tf.float32) for at, size in enumerate(sizes)]
        self.values = [piece.read_value() for piece in self.pieces]

    def joined(self, received: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """The new value of each piece, of the buckets of all ps in their order."""
        return [tf.concat(received, 0)] if len(self.pieces) < len(received) else received

    def assign(self, values: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Sets each piece; `values` are as of `joined`."""
        return [piece.assign(value, read_value=False) for piece, value in zip(self.pieces, values, strict=True)]
