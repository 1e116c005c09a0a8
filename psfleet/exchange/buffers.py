"""Memory for tensors that arrive: aligned, so that TensorFlow takes it without a copy, and used again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psfleet.layout import ALIGNMENT_BYTES

MAX_FREE = 4
"""Buffers that a pool keeps; one that is needed beyond them is made anew."""
OWN_REFERENCES = 3
"""To a buffer that nobody else has: of its tuple, of the loop, and of `sys.getrefcount`."""


@dataclass(frozen=True)
class TensorKind:
    """Type and size of a tensor on a connection, a vector."""

    dtype: np.dtype
    size: int

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * self.size


class BufferPool:
    """Buffers for messages that have the same tensors. Thread-safe.

    A buffer is free once no array refers to it, those included that TensorFlow holds: it counts a reference to an array
    whose memory it uses, and drops it at a later call (DelayedNumpyDecref in ndarray_tensor_bridge.cc).
    """

    def __init__(self, kinds: Sequence[TensorKind]) -> None:
        self.kinds = tuple(kinds)
        self.num_bytes = sum(each.num_bytes for each in kinds)
        """Of a message."""
        self._lock = threading.Lock()
        # Each with its first aligned byte.
        self._buffers: list[tuple[np.ndarray, int]] = []
        self._offsets = []
        end = 0
        for each in kinds:
            self._offsets.append(end)
            end += -(-each.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._size = end + ALIGNMENT_BYTES

    def take(self) -> list[np.ndarray]:
        """Arrays of the kinds of the pool, with any content."""
        with self._lock:
            buffer, start = self._free()
            # Each refers to the buffer itself, also as a slice of a slice: NumPy's `base` is what owns the memory.
            return [
                buffer[start + at : start + at + each.num_bytes].view(each.dtype)
                for at, each in zip(self._offsets, self.kinds, strict=True)
            ]

    def _free(self) -> tuple[np.ndarray, int]:
        for buffer, start in self._buffers:
            if sys.getrefcount(buffer) == OWN_REFERENCES:
                return buffer, start
        buffer = np.empty(self._size, np.uint8)
        made = buffer, -buffer.ctypes.data % ALIGNMENT_BYTES
        if len(self._buffers) < MAX_FREE:
            self._buffers.append(made)
        return made
