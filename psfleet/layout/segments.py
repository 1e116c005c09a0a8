"""The segments of a shard: the parts of its parameters that are pushed, updated and pulled independently."""

from __future__ import annotations

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


def segments(layout: FlatLayout, shard: int, of_each_bucket: bool = False) -> tuple[Segment, ...]:
    """The segments of a shard in ascending order: one of each bucket, or a single one."""
    found = buckets(layout, shard)
    groups = [(bucket,) for bucket in found] if of_each_bucket else [found]
    return tuple(Segment(index, group) for index, group in enumerate(groups)) or (Segment(0, ()),)
