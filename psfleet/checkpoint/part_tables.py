"""Embedding tables in checkpoint parts: the arrays of a ps's rows, by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psfleet.layout import EmbeddingContent, EmbeddingSpec

TABLE_PREFIX = "table/"
IDS, ROWS, SLOT = "ids", "rows", "slot."
"""Kinds of arrays: the numbers of the rows, their values, and the values of an optimizer slot."""
READ_ROWS = 1 << 16
"""Rows of an array that are read at once, where only some of them are wanted."""


def arrays_of(tables: Mapping[str, EmbeddingContent]) -> dict[str, np.ndarray]:
    """The arrays of tables by key: `table/WHAT/NAME`; no copies."""
    return {
        f"{TABLE_PREFIX}{what}/{name}": array
        for name, content in tables.items()
        for what, array in (
            (IDS, content.ids),
            (ROWS, content.rows),
            *((f"{SLOT}{slot}", values) for slot, values in content.slots.items()),
        )
    }


def array_dtype(key: str, tables: Sequence[EmbeddingSpec]) -> tuple[np.dtype[Any], list[int]] | None:
    """The dtype of the array of a key, and the shape of one row in it; None if no table has the key."""
    what, _, name = key.removeprefix(TABLE_PREFIX).partition("/")
    spec = next((table for table in tables if table.name == name), None)
    if spec is None or not key.startswith(TABLE_PREFIX):
        return None
    if what == IDS:
        return np.dtype(np.int64), []
    is_known = what == ROWS or (what.startswith(SLOT) and what != SLOT)
    return (np.dtype(np.float32), [spec.width]) if is_known else None


def contents_of(arrays: Mapping[str, np.ndarray], tables: Sequence[EmbeddingSpec]) -> dict[str, EmbeddingContent]:
    """The inverse of `arrays_of`; a table without arrays has no rows: the initial checkpoint has none.

    Args:
        arrays: With keys that `array_dtype` knows.

    Raises:
        ValueError: The arrays of a table do not have the same number of rows, or an id is not in it or there twice.
    """
    found = {}
    for spec in tables:
        own = {key.split("/")[1]: array for key, array in arrays.items() if key.split("/", 2)[2] == spec.name}
        if not own:
            found[spec.name] = EmbeddingContent.empty(spec.width)
            continue
        _require_equal(spec, {what: len(array) for what, array in own.items()})
        ids, rows = own.pop(IDS), own.pop(ROWS)
        _require_rows(spec, ids)
        found[spec.name] = EmbeddingContent(ids, rows, {what.removeprefix(SLOT): own[what] for what in own})
    return found


def _require_equal(spec: EmbeddingSpec, counts: Mapping[str, int]) -> None:
    """Checks the number of rows of each array of a table."""
    if not {IDS, ROWS} <= counts.keys() or len(set(counts.values())) > 1:
        raise ValueError(f"table {spec.name} has rows of {dict(counts)}, expected ids, rows and slots of equal length")


def _require_rows(spec: EmbeddingSpec, ids: np.ndarray) -> None:
    """Checks that ids are different rows of a table."""
    if len(ids) and (ids.min() < 0 or ids.max() >= spec.rows):
        found = f"ids from {ids.min()} to {ids.max()}"
        raise ValueError(f"table {spec.name} has {found}, expected 0 to {spec.rows - 1}")
    # np.unique hashes integers, which takes several times as long for millions of them (NumPy 2.3).
    ordered = np.sort(ids)
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError(f"table {spec.name} has a row twice, expected each id once")


def ranges_of(tables: Mapping[str, EmbeddingContent], max_bytes: int) -> Iterator[tuple[str, int, np.ndarray]]:
    """The arrays in ranges of elements: key, index of the first element, values."""
    for key, array in arrays_of(tables).items():
        flat = array.reshape(-1)
        most = max(1, max_bytes // flat.itemsize)
        yield from ((key, at, flat[at : at + most]) for at in range(0, len(flat), most))


@dataclass(frozen=True)
class StoredTables:
    """The tables of an open part.

    Attributes:
        keys: Of their arrays.
        tables: Those of the layout.
        file: As `safe_open` returns it.
    """

    keys: tuple[str, ...]
    tables: tuple[EmbeddingSpec, ...]
    file: Any

    def read(self, shard: int = 0, num_ps: int = 1) -> dict[str, EmbeddingContent]:
        """Reads the rows of one of any number of ps, in memory for these, all ids, and one range.

        Raises:
            ValueError: See `contents_of`.
        """
        return {spec.name: self._read(spec, shard, num_ps) for spec in self.tables}

    def ranges(self, spec: EmbeddingSpec) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids and values of the rows of a table, in ranges.

        Raises:
            ValueError: See `contents_of`.
        """
        arrays = self._arrays(spec)
        ids = self._ids(spec, arrays)
        for start in range(0, len(ids), READ_ROWS):
            yield ids[start : start + READ_ROWS], _range(arrays[ROWS], start, len(ids))

    def _read(self, spec: EmbeddingSpec, shard: int, num_ps: int) -> EmbeddingContent:
        arrays = self._arrays(spec)
        ids = self._ids(spec, arrays)
        is_own = ids % num_ps == shard
        count = int(np.count_nonzero(is_own))
        own = {}
        for what in arrays.keys() - {IDS}:
            values = own[what] = np.empty((count, spec.width), np.float32)
            at = 0
            for start in range(0, len(ids), READ_ROWS):
                found = _range(arrays[what], start, len(ids))[is_own[start : start + READ_ROWS]]
                values[at : at + len(found)] = found
                at += len(found)
        rows = own.pop(ROWS, np.zeros((0, spec.width), np.float32))
        return EmbeddingContent(ids[is_own], rows, {what.removeprefix(SLOT): own[what] for what in sorted(own)})

    def _arrays(self, spec: EmbeddingSpec) -> dict[str, Any]:
        """The arrays of a table by their kinds, of which nothing is read yet."""
        own = [key for key in self.keys if key.split("/", 2)[2] == spec.name]
        return {key.split("/")[1]: self.file.get_slice(key) for key in own}

    def _ids(self, spec: EmbeddingSpec, arrays: Mapping[str, Any]) -> np.ndarray:
        """The ids of a table."""
        counts = {what: int(array.get_shape()[0]) for what, array in arrays.items()}
        if counts:
            _require_equal(spec, counts)
        # safetensors refuses a range of an empty array.
        if not counts.get(IDS):
            return np.zeros(0, np.int64)
        ids: np.ndarray = arrays[IDS][0 : counts[IDS]]
        _require_rows(spec, ids)
        return ids


def _range(array: Any, start: int, count: int) -> np.ndarray:
    """The rows of an array of `count` rows, from one on."""
    values: np.ndarray = array[start : min(start + READ_ROWS, count)]
    return values


class ReceivedTables:
    """The arrays of tables as they arrive in ranges."""

    def __init__(self, tables: Sequence[EmbeddingSpec]) -> None:
        self._tables = tables
        self._data: dict[str, bytearray] = {}

    def put(self, key: str, start: int, data: bytes) -> bool:
        """Appends a range of elements.

        Returns:
            Whether it follows those before it in an array of a table.
        """
        found = array_dtype(key, self._tables)
        held = self._data.setdefault(key, bytearray())
        if found is None or len(held) != start * found[0].itemsize or len(data) % found[0].itemsize:
            return False
        held += data
        return True

    def contents(self) -> dict[str, EmbeddingContent]:
        """The tables.

        Raises:
            ValueError: See `contents_of`.
        """
        arrays = {}
        for key, data in self._data.items():
            found = array_dtype(key, self._tables)
            assert found is not None, "put() has found it"
            dtype, row = found
            arrays[key] = np.frombuffer(bytes(data), dtype).reshape(-1, *row)
        return contents_of(arrays, self._tables)
