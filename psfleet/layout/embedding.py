"""Embedding tables: what they are, and the initial values of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

BLOCK_VALUES = 1 << 20
"""Initial values that are computed at once: the hashes take several times their memory."""


@dataclass(frozen=True)
class EmbeddingSpec:
    """An embedding table: float32 `[rows, width]`, of which each ps has the rows r with r mod number of ps = its index.

    Attributes:
        key: Its name in the job file: the path of a Keras layer, or the name of a variable of a graph program.
        name: The name of its tensor in checkpoints and exports.
        init: Distribution of the initial values: uniform over [-scale, scale), or zeros.
        seed: Of the initial values, which are a function of seed, name, row and column only.
        is_hashed: Whether a row number is the hash of an id.
    """

    key: str
    name: str
    rows: int
    width: int
    init: str
    scale: float
    seed: int
    is_hashed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON values; `is_hashed` only if it is true, which earlier versions do not know."""
        return {name: value for name, value in asdict(self).items() if name != "is_hashed" or value}


@dataclass(frozen=True)
class EmbeddingContent:
    """Rows of a table that have been updated.

    Attributes:
        ids: int64 `[n]`, the rows' numbers, each once.
        rows: float32 `[n, width]`.
        slots: Optimizer slot name to float32 `[n, width]`.
    """

    ids: np.ndarray
    rows: np.ndarray
    slots: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def empty(cls, width: int) -> EmbeddingContent:
        """No rows."""
        return cls(np.zeros(0, np.int64), np.zeros((0, width), np.float32))

    @classmethod
    def joined(cls, parts: Sequence[EmbeddingContent], width: int) -> EmbeddingContent:
        """The rows of all parts. Slots that not all parts with rows have are left out."""
        parts = [part for part in parts if len(part.ids)]
        if not parts:
            return cls.empty(width)
        if len(parts) == 1:
            return parts[0]
        names = set.intersection(*(set(part.slots) for part in parts))
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.rows for part in parts]),
            {name: np.concatenate([part.slots[name] for part in parts]) for name in sorted(names)},
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.ids.nbytes + self.rows.nbytes + sum(values.nbytes for values in self.slots.values())


IDS, ROWS = "#ids", "#rows"
"""Endings of the names under which values of a model hold the rows of a table that have been updated."""


def row_values(tables: Mapping[str, EmbeddingContent]) -> dict[str, np.ndarray]:
    """The rows of tables as named arrays, sorted by id: `NAME#ids`, int64 `[n]`; `NAME#rows`, float32 `[n, width]`."""
    values: dict[str, np.ndarray] = {}
    for name, content in tables.items():
        order = np.argsort(content.ids)
        values |= {f"{name}{IDS}": content.ids[order], f"{name}{ROWS}": content.rows[order]}
    return values


def dense_table(spec: EmbeddingSpec, updated: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """All rows of a table: float32 `[rows, width]`.

    Args:
        updated: Ids and values of the rows that have been updated, in ranges.
    """
    dense = np.empty((spec.rows, spec.width), np.float32)
    for start, block in initial_blocks(spec):
        dense[start : start + len(block)] = block
    for ids, rows in updated:
        dense[ids] = rows
    return dense


def initial_blocks(spec: EmbeddingSpec) -> Iterator[tuple[int, np.ndarray]]:
    """The initial values of all rows in blocks: number of the first row, float32 `[n, width]`."""
    most = max(1, BLOCK_VALUES // spec.width)
    for start in range(0, spec.rows, most):
        yield start, initial_rows(spec, np.arange(start, min(start + most, spec.rows)))


def initial_rows(spec: EmbeddingSpec, ids: np.ndarray) -> np.ndarray:
    """The initial values of rows: float32 `[len(ids), width]`.

    Each value is a hash of its position, so that it does not depend on the number of ps, on the order in which rows
    are first read, or on a restart. The hash is splitmix64 (Steele, Lea and Flood 2014, figure 15).

    Args:
        ids: int64 `[n]`, the rows' numbers.
    """
    if spec.init == "zeros":
        return np.zeros((len(ids), spec.width), np.float32)
    digest = hashlib.sha256(f"{spec.seed}/{spec.name}".encode()).digest()
    first = ids.astype(np.uint64)[:, None] * np.uint64(spec.width)
    mixed: np.ndarray = first + np.arange(spec.width, dtype=np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(int.from_bytes(digest[:8], "little"))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    # 24 bits: every one of these fractions is a float32.
    fractions = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23)
    values: np.ndarray = (fractions - np.float32(1)) * np.float32(spec.scale)
    return values
