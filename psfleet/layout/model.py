"""Every tensor of a model and its position: the flat vectors of parameters, state and frozen tensors."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psfleet.layout.embedding import EmbeddingSpec
from psfleet.layout.flat import FlatLayout, Losses, Specs, Tables, TensorSpec
from psfleet.layout.state_range import StateRange

APPROXIMATE = "about "  # Begins a digest of numbers that need not agree to the last digit.


def state_order(spec: TensorSpec) -> tuple[bool, str]:
    """Sorts tensors of state so that shards have the fewest ranges: by floating point type, then all others."""
    return not spec.is_float, spec.dtype if spec.is_float else ""


@dataclass(frozen=True)
class Layout:
    """Every tensor of a model and its position.

    `parameters` are trained. `state` are tensors that the forward pass changes (moving averages, seeds of dropout), and
    `frozen` those that never change; both are vectors of bytes. `tables` are lookup tables and constants of layers,
    each with a digest: every worker has its own, and no checkpoint. The layout's digest is without `APPROXIMATE` ones.
    `embeddings` are the embedding tables of the job: in none of the vectors.
    """

    parameters: FlatLayout
    state: FlatLayout
    frozen: FlatLayout
    tables: Tables = ()
    embeddings: tuple[EmbeddingSpec, ...] = ()

    @classmethod
    def plan(
        cls,
        parameters: Specs,
        state: Specs,
        frozen: Specs,
        num_ps: int,
        bucket_bytes: int,
        tables: Tables = (),
        losses: Losses = (),
        embeddings: Sequence[EmbeddingSpec] = (),
    ) -> Layout:
        """Cuts a model for `num_ps` parameter servers, in buckets of at most `bucket_bytes`, a multiple of 64."""
        buckets = max(1, math.ceil(FlatLayout(tuple(parameters), num_ps).shard_size * 4 / bucket_bytes))
        return cls(
            parameters=FlatLayout(tuple(parameters), num_ps, buckets, losses=losses),
            state=FlatLayout(tuple(state), num_ps, unit_dtype="uint8"),
            frozen=FlatLayout(tuple(frozen), num_ps, unit_dtype="uint8"),
            tables=tuple(tables),
            embeddings=tuple(embeddings),
        )

    @property
    def num_ps(self) -> int:
        """Number of shards."""
        return self.parameters.num_shards

    @property
    def saved(self) -> Layout:
        """The layout of what checkpoints hold."""
        specs = tuple(spec for spec in self.state.specs if spec.is_saved)
        parameters = replace(self.parameters, losses=())
        return replace(self, parameters=parameters, state=replace(self.state, specs=specs), tables=())

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
            **({"losses": [list(loss) for loss in self.parameters.losses]} if self.parameters.losses else {}),
            **({"embeddings": [table.to_dict() for table in self.embeddings]} if self.embeddings else {}),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Layout:
        """The inverse of `to_dict`."""

        def specs(part: str) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(name, tuple(shape), *others) for name, shape, *others in content[part])

        num_ps, losses = content["num_ps"], tuple((name, count) for name, count in content.get("losses", ()))
        return cls(
            parameters=FlatLayout(specs("parameters"), num_ps, content["buckets_per_ps"], losses=losses),
            state=FlatLayout(specs("state"), num_ps, unit_dtype="uint8"),
            frozen=FlatLayout(specs("frozen"), num_ps, unit_dtype="uint8"),
            tables=tuple((layer, content_digest) for layer, content_digest in content.get("tables", ())),
            embeddings=tuple(EmbeddingSpec(**table) for table in content.get("embeddings") or ()),
        )

    def digest(self) -> str:
        """Sixteen hex digits of a hash; equal for equal layouts. Computed once: each heartbeat contains it."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        exact = replace(self, tables=[table for table in self.tables if not table[1].startswith(APPROXIMATE)])
        return hashlib.sha256(json.dumps(exact.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
