"""The position of each named tensor in the flat vectors, which are divided into equal shards, one on each ps."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
APPROXIMATE = "about "  # Begins a digest of numbers that need not agree to the last digit.


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
    """

    specs: tuple[TensorSpec, ...]
    num_shards: int
    buckets_per_shard: int = 1
    unit_dtype: str = "float32"

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


@dataclass(frozen=True)
class StateRange:
    """Consecutive bytes of a shard's state.

    `start` and `stop` are positions in the shard, both multiples of `ALIGNMENT_BYTES`. `float_dtype` is the NumPy name
    of the floating point type that all elements have; None: other types.
    """

    start: int
    stop: int
    float_dtype: str | None

    @property
    def num_bytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start


def state_order(spec: TensorSpec) -> tuple[bool, str]:
    """Sorts tensors of state so that shards have the fewest ranges: by floating point type, then all others."""
    return not spec.is_float, spec.dtype if spec.is_float else ""


@dataclass(frozen=True)
class Layout:
    """Every tensor of a model and its position.

    `parameters` are trained. `state` are tensors that the forward pass changes (moving averages, seeds of dropout), and
    `frozen` those that never change; both are vectors of bytes. `tables` are lookup tables and constants of layers,
    each with a digest: every worker has its own, and no checkpoint. The layout's digest is without `APPROXIMATE` ones.
    """

    parameters: FlatLayout
    state: FlatLayout
    frozen: FlatLayout
    tables: Tables = ()

    @classmethod
    def plan(
        cls, parameters: Specs, state: Specs, frozen: Specs, num_ps: int, bucket_bytes: int, tables: Tables = ()
    ) -> Layout:
        """Cuts a model for `num_ps` parameter servers, in buckets of at most `bucket_bytes`, a multiple of 64."""
        buckets = max(1, math.ceil(FlatLayout(tuple(parameters), num_ps).shard_size * 4 / bucket_bytes))
        return cls(
            parameters=FlatLayout(tuple(parameters), num_ps, buckets),
            state=FlatLayout(tuple(state), num_ps, unit_dtype="uint8"),
            frozen=FlatLayout(tuple(frozen), num_ps, unit_dtype="uint8"),
            tables=tuple(tables),
        )

    @property
    def num_ps(self) -> int:
        """Number of shards."""
        return self.parameters.num_shards

    @property
    def saved(self) -> Layout:
        """The layout of what checkpoints hold."""
        specs = tuple(spec for spec in self.state.specs if spec.is_saved)
        return replace(self, state=replace(self.state, specs=specs), tables=())

    def state_ranges(self, shard: int) -> tuple[StateRange, ...]:
        """Divides a shard's state by the type of its elements; empty if no tensor of state is in the shard.

        The ranges cover the whole shard, gaps included. No element is cut: tensors and shards start at multiples of
        `ALIGNMENT_BYTES`.
        """
        pieces = self.state.pieces(shard)
        groups = itertools.groupby(pieces, key=lambda piece: piece.spec.dtype if piece.spec.is_float else None)
        starts = [(next(members).at, float_dtype) for float_dtype, members in groups]
        stops = [*(start for start, _ in starts[1:]), self.state.shard_size]
        return tuple(StateRange(start, stop, dtype) for (start, dtype), stop in zip(starts, stops, strict=False))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""

        def listed(spec: TensorSpec) -> list[Any]:
            return [spec.name, list(spec.shape), spec.dtype, *([] if spec.is_saved else [False])]

        return {
            "num_ps": self.num_ps,
            "buckets_per_ps": self.parameters.buckets_per_shard,
            **{
                part: [listed(spec) for spec in getattr(self, part).specs] for part in ("parameters", "state", "frozen")
            },
            **({"tables": [list(table) for table in self.tables]} if self.tables else {}),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Layout:
        """The inverse of `to_dict`."""

        def specs(part: str) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(name, tuple(shape), *others) for name, shape, *others in content[part])

        num_ps = content["num_ps"]
        return cls(
            parameters=FlatLayout(specs("parameters"), num_ps, content["buckets_per_ps"]),
            state=FlatLayout(specs("state"), num_ps, unit_dtype="uint8"),
            frozen=FlatLayout(specs("frozen"), num_ps, unit_dtype="uint8"),
            tables=tuple((layer, content_digest) for layer, content_digest in content.get("tables", ())),
        )

    def digest(self) -> str:
        """Sixteen hex digits of a hash; equal for equal layouts. Computed once: each heartbeat contains it."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        exact = replace(self, tables=[table for table in self.tables if not table[1].startswith(APPROXIMATE)])
        return hashlib.sha256(json.dumps(exact.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
