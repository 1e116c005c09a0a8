"""A copy of the rows of a table as they were at one moment, made while the table is updated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ps_service.tables.lazy_array import lazy_zeros
from psfleet.layout.embedding import EmbeddingContent


class TableSnapshot:
    """Has updates keep the values of the rows that they change, each once, until all rows are copied.

    Taking it costs nothing; an update keeps only rows that it changes anyway. So no step waits for the copy of a table,
    whatever its size is. The copy is made without a lock: a row that is updated meanwhile may be copied with any value,
    and gets the one that was kept.

    Args of the constructor:
        ids, rows, slots: Those of the table, which later updates change in place; see `EmbeddingContent`.
    """

    def __init__(self, ids: np.ndarray, rows: np.ndarray, slots: Mapping[str, np.ndarray]) -> None:
        self._present = EmbeddingContent(ids, rows, dict(slots))
        self._is_kept = lazy_zeros((len(ids),), "bool")
        self._kept: list[EmbeddingContent] = []

    def keep(self, at: np.ndarray) -> None:
        """Keeps the values of rows that are about to change.

        Args:
            at: int64 `[n]`, their places in the table, each once; those of rows that are newer are ignored.
        """
        at = at[at < len(self._is_kept)]
        at = at[~self._is_kept[at]]
        self._is_kept[at] = True
        slots = {name: values[at] for name, values in self._present.slots.items()}
        self._kept.append(EmbeddingContent(at, self._present.rows[at], slots))

    def copy(self) -> EmbeddingContent:
        """All rows; those for which `keep` has been called since, or is called meanwhile, with any value."""
        present = self._present
        slots = {name: values.copy() for name, values in present.slots.items()}
        return replace(present, ids=present.ids.copy(), rows=present.rows.copy(), slots=slots)

    def put_kept(self, copied: EmbeddingContent) -> None:
        """Gives the rows of a copy the values that were kept, once `keep` is not called any more."""
        for kept in self._kept:
            copied.rows[kept.ids] = kept.rows
            for name, values in kept.slots.items():
                copied.slots[name][kept.ids] = values
        self._kept.clear()
