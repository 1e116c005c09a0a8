"""Memory for tensors that arrive: aligned, so that TensorFlow takes it without a copy, and used again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import numpy as np

from psfleet.exchange.message_layout import MessageLayout, TensorKind
from psfleet.layout import ALIGNMENT_BYTES

MAX_FREE = 4
"""Buffers that a pool keeps; one that is needed beyond them is made anew."""
OWN_REFERENCES = 3
"""To a buffer that nobody else has: of its container, of a loop, and of `sys.getrefcount`.

Not in a function that is called with the buffer: how many references a call has depends on Python and on debuggers.
"""


class BufferPool:
    """Buffers for messages that have the same tensors. Thread-safe.

    A buffer is free once no array refers to it, those included that TensorFlow holds: it counts a reference to an array
    whose memory it uses, and drops it at a later call (DelayedNumpyDecref in ndarray_tensor_bridge.cc).
    """

    def __init__(self, kinds: Sequence[TensorKind]) -> None:
        self.layout = MessageLayout(kinds)
        self._lock = threading.Lock()
        # Each with its first aligned byte.
        self._buffers: list[tuple[np.ndarray, int]] = []

    @property
    def num_bytes(self) -> int:
        """Of a message."""
        return self.layout.num_bytes

    def take(self) -> list[np.ndarray]:
        """Arrays of the kinds of the pool, with any content."""
        with self._lock:
            buffer, start = self._free()
            # Each refers to the buffer itself, also as a slice of a slice: NumPy's `base` is what owns the memory.
            return self.layout.arrays(buffer[start:])

    def _free(self) -> tuple[np.ndarray, int]:
        for buffer, start in self._buffers:
            if sys.getrefcount(buffer) == OWN_REFERENCES:
                return buffer, start
        buffer = np.empty(self.layout.size + ALIGNMENT_BYTES, np.uint8)
        made = buffer, -buffer.ctypes.data % ALIGNMENT_BYTES
        if len(self._buffers) < MAX_FREE:
            self._buffers.append(made)
        return made
