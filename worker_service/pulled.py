"""What a worker has read from one segment of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Pulled:
    """The tensors are on the worker.

    Attributes:
        progress: int64 `[2]`, the segment's global step and final step; `Exchange.pull` adds the started step.
        buckets: float32 vectors.
        state: uint8 `[state shard size]`; `[0]` in segments other than the first.
        slots: Averaging mode: the optimizer's slots, one `[shard_size]` float32 for each.
        words: Averaging mode: the optimizer's scalars, see `to_words`; else empty.
    """

    progress: tf.Tensor
    buckets: list[tf.Tensor]
    state: tf.Tensor
    slots: list[tf.Tensor]
    words: tf.Tensor


def split(received: Sequence[tf.Tensor], num_buckets: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The buckets of what was received, and each slot as `[shard_size]`."""
    slots = [tf.concat(received[at : at + num_buckets], 0) for at in range(num_buckets, len(received), num_buckets)]
    return list(received[:num_buckets]), slots
