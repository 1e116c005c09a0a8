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
        counts = {what: len(array) for what, array in own.items()}
        if not {IDS, ROWS} <= own.keys() or len(set(counts.values())) > 1:
            raise ValueError(f"table {spec.name} has rows of {counts}, expected ids, rows and slots of equal length")
        ids = own.pop(IDS)
        if len(ids) and (ids.min() < 0 or ids.max() >= spec.rows):
            found_ids = f"ids from {ids.min()} to {ids.max()}"
            raise ValueError(f"table {spec.name} has {found_ids}, expected 0 to {spec.rows - 1}")
        if len(np.unique(ids)) < len(ids):
            raise ValueError(f"table {spec.name} has a row twice, expected each id once")
        rows = own.pop(ROWS)
        found[spec.name] = EmbeddingContent(ids, rows, {what.removeprefix(SLOT): own[what] for what in own})
    return found


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

    def read(self) -> dict[str, EmbeddingContent]:
        """Reads all rows.

        Raises:
            ValueError: See `contents_of`.
        """
        return contents_of({key: np.asarray(self.file.get_tensor(key)) for key in self.keys}, self.tables)


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
