"""The position of each named tensor in a flat vector, which is divided into equal shards, one on each ps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT_BYTES = 64
"""Each tensor starts at a multiple of this: TensorFlow slices such a range without a copy (EIGEN_MAX_ALIGN_BYTES)."""


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor: its shape and its NumPy dtype by name.

    `is_saved` is false for state that is no part of the model and of no checkpoint: it is zeros after a restore.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    is_saved: bool = True

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating point numbers."""
        # By name: NumPy does not take bfloat16, nor most types of 8 bits, for floating point.
        return self.dtype.startswith(("float", "bfloat"))


Specs = Sequence[TensorSpec]
Tables = Sequence[tuple[str, str]]
Losses = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Piece:
    """The part of one tensor that lies in a range of the flat vector.

    `start` and `stop` are positions in the tensor; `at` is the piece's position in the range.
    """

    spec: TensorSpec
    start: int
    stop: int
    at: int


@dataclass(frozen=True)
class FlatLayout:
    """Tensors in one vector, one after the other, which is cut into `num_shards` equal shards.

    The vector's unit is an element of `unit_dtype`: float32 for parameters; uint8 for state, whose tensors have
    several types. Gaps and the tail are zeros.

    `losses` are, for a program with several, the name of each and the number of tensors that its steps move: those of
    the first loss come first. Empty: there is one loss.
    """

    specs: tuple[TensorSpec, ...]
    num_shards: int
    buckets_per_shard: int = 1
    unit_dtype: str = "float32"
    losses: Losses = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each tensor in the vector, in units."""
        return tuple(start for start, _ in self._extents())

    @property
    def bucket_size(self) -> int:
        """Units in each bucket: equal for all, and aligned like tensors."""
        used = sum([*self._extents()][-1]) if self.specs else 0
        aligned = ALIGNMENT_BYTES // np.dtype(self.unit_dtype).itemsize
        return math.ceil(used / (self.num_shards * self.buckets_per_shard * aligned)) * aligned

    @property
    def shard_size(self) -> int:
        """Units in each shard."""
        return self.bucket_size * self.buckets_per_shard

    @property
    def size(self) -> int:
        """Units in the whole vector."""
        return self.shard_size * self.num_shards

    def pieces(self, shard: int) -> Iterator[Piece]:
        """The pieces of tensors in a shard, in their order; `start`, `stop` and `at` in units."""
        low, high = shard * self.shard_size, (shard + 1) * self.shard_size
        for spec, (offset, units) in zip(self.specs, self._extents(), strict=True):
            start, stop = max(low, offset), min(high, offset + units)
            if start < stop:
                yield Piece(spec, start - offset, stop - offset, start - low)

    def pack(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """All tensors as one vector: `[size]` of `unit_dtype`.

        Raises:
            KeyError: A tensor is missing.
            ValueError: A tensor has another shape.
        """
        vector = np.zeros(self.size, self.unit_dtype)
        for spec, (offset, units) in zip(self.specs, self._extents(), strict=True):
            if (value := np.asarray(values[spec.name], spec.dtype, order="C")).shape != spec.shape:
                raise ValueError(f"{spec.name} has shape {list(value.shape)}, expected {list(spec.shape)}")
            vector[offset : offset + units] = value.reshape(-1).view(self.unit_dtype)
        return vector

    def unpack(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The named tensors of a vector `[size]` of `unit_dtype`; copies."""
        return {
            spec.name: vector[offset : offset + units].copy().view(spec.dtype).reshape(spec.shape)
            for spec, (offset, units) in zip(self.specs, self._extents(), strict=True)
        }

    def _extents(self) -> Iterator[tuple[int, int]]:
        """Offset and length of each tensor, in units."""
        unit_bytes, offset = np.dtype(self.unit_dtype).itemsize, 0
        for spec in self.specs:
            units = spec.num_bytes // unit_bytes
            yield offset, units
            offset = math.ceil((offset + units) * unit_bytes / ALIGNMENT_BYTES) * ALIGNMENT_BYTES // unit_bytes
