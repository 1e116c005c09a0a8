"""The tensors of a message, and where they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psfleet.layout import ALIGNMENT_BYTES


@dataclass(frozen=True)
class TensorKind:
    """Type and size of a tensor on a connection, a vector."""

    dtype: np.dtype
    size: int

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * self.size


class MessageLayout:
    """The tensors of a message in memory, each aligned so that TensorFlow takes it without a copy.

    Attributes:
        kinds: Of the tensors, in the order in which they are sent.
        num_bytes: Of the message, without gaps.
        size: Bytes that it takes in memory, a multiple of the alignment.
    """

    def __init__(self, kinds: Sequence[TensorKind]) -> None:
        self.kinds = tuple(kinds)
        self.num_bytes = sum(each.num_bytes for each in kinds)
        self._offsets = []
        self.size = 0
        for each in kinds:
            self._offsets.append(self.size)
            self.size += -(-each.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @classmethod
    def of(cls, tensors: Sequence[np.ndarray]) -> MessageLayout:
        """That of a message which consists of these vectors."""
        return cls([TensorKind(each.dtype, each.size) for each in tensors])

    def arrays(self, memory: np.ndarray) -> list[np.ndarray]:
        """The tensors as arrays that share a memory, uint8 with at least `size` elements."""
        return [
            memory[at : at + each.num_bytes].view(each.dtype)
            for at, each in zip(self._offsets, self.kinds, strict=True)
        ]

    def fill(self, memory: np.ndarray, pieces: Sequence[np.ndarray]) -> None:
        """Copies the message into a memory.

        Args:
            memory: uint8, at least `size` elements.
            pieces: Vectors, one after the other; a tensor is one of them or several.

        Raises:
            ValueError: They are not the tensors of this message.
        """
        rest = iter(pieces)
        for at, each in zip(self._offsets, self.kinds, strict=True):
            end = at + each.num_bytes
            while at < end:
                piece = next(rest, None)
                if piece is None:
                    raise ValueError(f"a message ends {end - at} bytes too early")
                # As bytes, since NumPy copies bfloat16 element by element.
                source = piece.view(np.uint8)
                if at + len(source) > end:
                    raise ValueError(f"a piece of a message is {at + len(source) - end} bytes too long")
                memory[at : at + len(source)] = source
                at += len(source)
        if any(map(len, rest)):
            raise ValueError("a message has more pieces than its tensors take")
