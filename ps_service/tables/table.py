"""The rows of one table on one ps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ps_service.tables.lazy_array import lazy_zeros
from ps_service.tables.rules import RowRule
from ps_service.tables.table_snapshot import TableSnapshot
from psfleet.errors import BadJobError
from psfleet.layout.embedding import EmbeddingContent, EmbeddingSpec, initial_rows

Gradient = tuple[np.ndarray, np.ndarray]
"""Ids, int64 `[n]`, each once; the gradients of these rows, float32 `[n, width]`."""


class Table:
    """Rows that were updated, with their slots, in the order of their first updates. No method is thread-safe.

    An index has a number for each row that may come here: 0, or its place + 1. So the memory is that of the rows that
    were updated, and at most 4 bytes for each other one.

    Args of the constructor:
        keeps_previous: Whether reads may ask for the rows before the last update.

    Raises:
        BadJobError: The table is too large for the addresses of this process, although only updated rows take memory.
    """

    def __init__(self, spec: EmbeddingSpec, shard: int, num_ps: int, rule: RowRule, keeps_previous: bool) -> None:
        self.spec = spec
        self.rule = rule
        self._num_ps = num_ps
        capacity = len(range(shard, spec.rows, num_ps))
        shape = (capacity, spec.width)
        try:
            self._places = lazy_zeros((capacity,), "int32" if capacity < 2**31 - 1 else "int64")
            self._ids = lazy_zeros((capacity,), "int64")
            self._rows = lazy_zeros(shape, "float32")
            self._slots = {name: lazy_zeros(shape, "float32") for name in rule.slots}
        except (OSError, OverflowError) as error:
            raise BadJobError(
                f"table {spec.key} has {capacity} rows of {spec.width} on ps {shard}, expected no more than fit into "
                f"its address space: {error}"
            ) from error
        self._count = 0
        self._keeps_previous = keeps_previous
        self._snapshot: TableSnapshot | None = None
        self._previous: Gradient = np.zeros(0, np.int64), np.zeros((0, spec.width), np.float32)

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows that were updated."""
        return self._count * self.spec.width * 4

    @property
    def slot_bytes(self) -> int:
        """Bytes of their slots."""
        return self.row_bytes * len(self._slots)

    def read(self, ids: np.ndarray, before_last: bool = False) -> np.ndarray:
        """Rows: float32 `[n, width]`; of those that were never updated their initial values.

        Args:
            ids: int64 `[n]`, of rows of this ps.
            before_last: Whether the rows before the last update are wanted, if they are kept.
        """
        places = self._places[ids // self._num_ps]
        found: np.ndarray = self._rows[places - 1]
        missing = places == 0
        if missing.any():
            found[missing] = initial_rows(self.spec, ids[missing])
        if before_last and len(self._previous[0]):
            changed, rows = self._previous
            at = np.minimum(np.searchsorted(changed, ids), len(changed) - 1)
            is_changed = changed[at] == ids
            found[is_changed] = rows[at[is_changed]]
        return found

    def update(self, gradients: Sequence[Gradient], rate: np.float32, number: int) -> None:
        """Applies the mean of gradients to the rows that at least one of them has.

        The order of the sum is that of `gradients`: the result does not depend on which has arrived first.

        Args:
            number: Of the update, counted from 1.
        """
        ids, inverse = np.unique(np.concatenate([ids for ids, _ in gradients]), return_inverse=True)
        mean = np.zeros((len(ids), self.spec.width), np.float32)
        start = 0
        for own, values in gradients:
            # Each id is there once: no element is written twice.
            mean[inverse[start : start + len(own)]] += values
            start += len(own)
        mean /= np.float32(len(gradients))
        if self._keeps_previous:
            self._previous = ids, self.read(ids)
        at = self._places_of(ids)
        if self._snapshot is not None:
            self._snapshot.keep(at)
        rows, slots = self._rows[at], {name: values[at] for name, values in self._slots.items()}
        self.rule.update(rows, slots, mean, rate, number)
        self._rows[at] = rows
        for name, values in slots.items():
            self._slots[name][at] = values

    def take_snapshot(self) -> TableSnapshot:
        """A snapshot of all rows that were updated, until the next one, or `end_snapshot`."""
        count = self._count
        slots = {name: values[:count] for name, values in self._slots.items()}
        self._snapshot = TableSnapshot(self._ids[:count], self._rows[:count], slots)
        return self._snapshot

    def end_snapshot(self) -> None:
        """Has updates keep no values any more."""
        self._snapshot = None

    def restore(self, content: EmbeddingContent) -> bool:
        """Sets the rows of a new table.

        Returns:
            Whether the slots are those of the rule; otherwise the rule starts without state.
        """
        self._add(content.ids)
        self._rows[: self._count] = content.rows
        is_same = set(content.slots) == set(self._slots) or not len(content.ids)
        for name, values in content.slots.items() if is_same else ():
            self._slots[name][: self._count] = values
        return is_same

    def _places_of(self, ids: np.ndarray) -> np.ndarray:
        """The places of rows, of which new ones are created: `[n]`."""
        local = ids // self._num_ps
        places = self._places[local]
        missing = places == 0
        new = ids[missing]
        if len(new):
            self._rows[self._count : self._count + len(new)] = initial_rows(self.spec, new)
            self._add(new)
            places = self._places[local]
        result: np.ndarray = places - 1
        return result

    def _add(self, new: np.ndarray) -> None:
        """Adds rows with slots that are new, behind all others."""
        first, self._count = self._count, self._count + len(new)
        self._places[new // self._num_ps] = np.arange(first + 1, self._count + 1)
        self._ids[first : self._count] = new
        for name, value in self.rule.slots.items():
            self._slots[name][first : self._count] = value
