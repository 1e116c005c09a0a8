"""Consecutive elements of one type in a shard's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StateRange:
    """Consecutive bytes of a shard's state.

    `start` and `stop` are positions in the shard, both multiples of `psfleet.layout.ALIGNMENT_BYTES`. `float_dtype` is
    the NumPy name of the floating point type that all elements have; None: other types.
    """

    start: int
    stop: int
    float_dtype: str | None

    @property
    def num_bytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start
