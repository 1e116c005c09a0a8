"""The segments of a shard: the parts of its parameters that are pushed, updated and pulled independently."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from psfleet.layout.buckets import Bucket, buckets
from psfleet.layout.flat import FlatLayout


@dataclass(frozen=True)
class Segment:
    """Buckets of a shard with a global step, a queue of pushes and a barrier of their own.

    Attributes:
        index: In the shard. The first segment also has the state, the frozen weights and the final step of the shard.
        buckets: In ascending order.
    """

    index: int
    buckets: tuple[Bucket, ...]

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its shard."""
        return self.index == 0


def segments(layout: FlatLayout, shard: int, most: int = 1) -> tuple[Segment, ...]:
    """The segments of a shard in ascending order.

    Args:
        most: There is one segment of each bucket, but no more than this; then they have equal numbers of buckets, or
            some have one more.
    """
    found = buckets(layout, shard)
    number = max(1, min(most, len(found)))
    bounds = [len(found) * index // number for index in range(number + 1)]
    pairs = itertools.pairwise(bounds)
    return tuple(Segment(index, found[start:stop]) for index, (start, stop) in enumerate(pairs))
