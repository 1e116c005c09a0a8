"""The buckets of a shard: the pieces of its parameters that are sent as one tensor each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psfleet.layout.flat import FlatLayout, TensorSpec


@dataclass(frozen=True)
class Bucket:
    """Elements of the vector of all parameters.

    Attributes:
        start, stop: Positions in the vector.
        loss: Index of the loss whose steps move these parameters; 0 if there is one loss.
    """

    start: int
    stop: int
    loss: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


def buckets(layout: FlatLayout, shard: int) -> tuple[Bucket, ...]:
    """The buckets of a shard in ascending order: equal ones, each cut where the parameters of another loss begin."""
    # Each of these goes over all tensors.
    size, ranges = layout.bucket_size, loss_ranges(layout)
    low = shard * size * layout.buckets_per_shard
    found = []
    for start in range(low, low + size * layout.buckets_per_shard, size):
        for loss, (first, last) in enumerate(ranges):
            begin, end = max(start, first), min(start + size, last)
            if begin < end:
                found.append(Bucket(begin, end, loss))
    return tuple(found)


def loss_ranges(layout: FlatLayout) -> list[tuple[int, int]]:
    """First element, and the one after the last, of the parameters of each loss; together they are the whole vector."""
    starts = [0]
    number = 0
    for _, count in layout.losses[:-1]:
        number += count
        starts.append(layout.offsets[number])
    return list(zip(starts, [*starts[1:], layout.size], strict=True))


def specs_of_loss(layout: FlatLayout, loss: int) -> tuple[TensorSpec, ...]:
    """The tensors that the steps of a loss move; all if there is one loss."""
    return layout.specs[_numbers(layout, loss)]


def offsets_of_loss(layout: FlatLayout, loss: int) -> tuple[int, ...]:
    """Their offsets in the vector."""
    return layout.offsets[_numbers(layout, loss)]


def loss_order(layout: FlatLayout, alternate: Sequence[str] | None) -> tuple[int, ...]:
    """The losses of consecutive steps, by index, which begin anew after the last; (0,) if there is one loss.

    Step n, counted from 0, has that at n modulo the length: it depends on nothing but its number.

    Args:
        alternate: `train.alternate` of the job.
    """
    names = [name for name, _ in layout.losses]
    return tuple(names.index(name) for name in alternate or ()) or (0,)


def loss_names(layout: FlatLayout) -> Sequence[str]:
    """The names of the losses; an empty one if there is one loss."""
    return [name for name, _ in layout.losses] or [""]


def _numbers(layout: FlatLayout, loss: int) -> slice:
    """The tensors of a loss, by their numbers."""
    if not layout.losses:
        return slice(None)
    counts = [count for _, count in layout.losses]
    return slice(sum(counts[:loss]), sum(counts[: loss + 1]))
