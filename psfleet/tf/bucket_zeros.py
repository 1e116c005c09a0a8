"""What a ps enqueues for a push that has the buckets of one of several losses."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.layout.buckets import Bucket


def with_zeros(every: Sequence[Bucket], own: Sequence[Bucket], arrived: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """On the ps: what has arrived of `own`, and zeros for the buckets of other losses.

    Args:
        every: All buckets of the shard.
        arrived: Begins with `own`; what follows is kept if these are all.
    """
    if len(own) == len(every):
        return list(arrived)
    found = dict(zip(own, arrived, strict=False))
    return [found[each] if each in found else tf.zeros([each.size]) for each in every]
