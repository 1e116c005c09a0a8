"""Makes full batches of pieces of any number of examples, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psfleet.errors import ProgramError
from worker_service.batch_reader import Batch
from worker_service.pass_counts import PassKey


@dataclass(frozen=True)
class Piece:
    """Examples of one pass, `[examples, ...]` each."""

    key: PassKey
    arrays: Batch

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.arrays[0])

    def cut(self, start: int, end: int | None = None) -> Piece:
        """Some of the examples, without a copy."""
        return Piece(self.key, tuple(array[start:end] for array in self.arrays))


class JoinedBatches:
    """A queue of pieces from which full batches are taken.

    Args of the constructor:
        batch_size: Examples of a batch.
        pads: Whether examples of unequal sizes are padded, as `padded_batch` does.
    """

    def __init__(self, batch_size: int, pads: bool) -> None:
        self._batch_size = batch_size
        self._pads = pads
        self._pieces: deque[Piece] = deque()

    def add(self, piece: Piece) -> None:
        """Appends a piece."""
        self._pieces.append(piece)

    def take(self) -> tuple[Batch, list[tuple[PassKey, int]]] | None:
        """The next batch with the passes that its examples are of; None: there are too few examples.

        Raises:
            ProgramError: The examples have unequal sizes, and are not padded.
        """
        if sum(piece.size for piece in self._pieces) < self._batch_size:
            return None
        taken: list[Piece] = []
        missing = self._batch_size
        while missing:
            piece = self._pieces.popleft()
            if piece.size > missing:
                self._pieces.appendleft(piece.cut(missing))
                piece = piece.cut(0, missing)
            taken.append(piece)
            missing -= piece.size
        counts = [(piece.key, piece.size) for piece in taken]
        if len(taken) == 1:
            return taken[0].arrays, counts
        return tuple(self._joined(arrays) for arrays in zip(*(piece.arrays for piece in taken), strict=True)), counts

    def keys(self) -> set[PassKey]:
        """The passes of which examples are left."""
        return {piece.key for piece in self._pieces}

    def _joined(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            if not self._pads:
                found = " and ".join(map(str, sorted(shapes)))
                raise ProgramError(f"the examples of a batch have the shapes {found}; input.pad: true pads them")
            largest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
            arrays = [_padded(array, largest) for array in arrays]
        return np.concatenate(arrays)


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Padded to examples of a shape, with 0, false or empty text."""
    fill = b"" if array.dtype == object else 0
    padded = np.full((len(array), *shape), fill, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded
