"""Rows of embedding tables in a step: their lookup by ids, their gradients, and rows of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.layout import EmbeddingContent, EmbeddingSpec, initial_rows
from psfleet.layout.embedding import IDS, ROWS

OUT_OF_RANGE = re.compile(r"assertion failed: \[psfleet: table (\S+) of (\d+) rows\] \[(-?\d+)\] \[(-?\d+)\]")
"""The message of the assertion of `TableUses`, of which the last two are the lowest and the highest id."""


@dataclass(frozen=True)
class TableGradient:
    """The gradient of a batch with respect to the rows of a table.

    Attributes:
        ids: int64 `[n]`, each once.
        values: float32 `[n, width]`.
    """

    spec: EmbeddingSpec
    ids: tf.Tensor
    values: tf.Tensor


class Rows(Protocol):
    """Where a graph reads rows.

    Attributes:
        at_step: int64 scalar of the graph into which the program's is copied: the local step.
    """

    @property
    def at_step(self) -> tf.Tensor:
        """See above."""

    def read(self, table: int, ids: tf.Tensor, at_step: tf.Tensor) -> tf.Tensor:
        """Rows of the table of an index in `Layout.embeddings`: float32 `[n, width]`.

        Args:
            ids: int64 `[n]`.
            at_step: As the attribute, in the program's graph.
        """
        ...


class TableUses:
    """The uses of tables while one step of a program is traced.

    Args of the constructor:
        at_step: See `Rows.read`; None: there are no tables.
        watch: Is called with the rows of each use, of which gradients are wanted.

    Attributes:
        source: Where rows are read.
    """

    def __init__(
        self,
        specs: Sequence[EmbeddingSpec],
        source: Rows,
        at_step: tf.Tensor | None = None,
        watch: Callable[[tf.Tensor], object] = lambda rows: None,
    ) -> None:
        self._specs = specs
        self.source = source
        self._at_step = at_step
        self._watch = watch
        self._graph = tf.compat.v1.get_default_graph()
        self._uses: list[tuple[int, tf.Tensor, tf.Tensor]] = []

    def lookup(self, table: int, ids: tf.Tensor) -> tf.Tensor:
        """The rows of ids: float32 `[*ids.shape, width]`.

        Raises:
            ProgramError: The table is used in a loop or in another function, or at ids of another type.
        """
        spec = self._specs[table]
        assert self._at_step is not None, "there are tables"
        graph = tf.compat.v1.get_default_graph()
        # Loops of control flow v1, which a worker's graph has, are in the same graph.
        if graph is not self._graph or graph._get_control_flow_context() is not None:
            raise ProgramError(f"table {spec.key} is used in a loop, a branch or a function, expected outside of them")
        flat = tf.reshape(_row_numbers(spec, ids), [-1])
        unique, places = tf.unique(flat)
        rows = self.source.read(table, unique, self._at_step)
        self._watch(rows)
        self._uses.append((table, unique, rows))
        found = tf.reshape(tf.gather(rows, places), tf.concat([tf.shape(ids), [spec.width]], 0))
        return tf.ensure_shape(found, tf.TensorShape(ids.shape).concatenate(spec.width))

    @property
    def rows(self) -> list[tf.Tensor]:
        """Of each use, float32 `[n, width]`."""
        return [rows for _, _, rows in self._uses]

    @property
    def names(self) -> list[str]:
        """Of the table of each use, in the order of `rows`."""
        return [self._specs[table].name for table, _, _ in self._uses]

    def gradients(self, found: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> list[tf.Tensor]:
        """Ids and gradients of each table, which has each row once.

        Args:
            found: With respect to `rows`.
        """
        tensors: list[tf.Tensor] = []
        for table, spec in enumerate(self._specs):
            parts = [
                (ids, tf.zeros_like(rows) if gradient is None else tf.convert_to_tensor(gradient))
                for (used, ids, rows), gradient in zip(self._uses, found, strict=True)
                if used == table
            ]
            if not parts:
                tensors += [tf.zeros([0], tf.int64), tf.zeros([0, spec.width])]
            elif len(parts) == 1:
                tensors += parts[0]
            else:
                ids, places = tf.unique(tf.concat([ids for ids, _ in parts], 0))
                values = tf.concat([values for _, values in parts], 0)
                tensors += [ids, tf.math.unsorted_segment_sum(values, places, tf.size(ids))]
        return tensors


class SavedRows:
    """Rows of a checkpoint, in this process; initial ones until `use` is called. See `Rows`."""

    def __init__(self, specs: Sequence[EmbeddingSpec]) -> None:
        self._specs = specs
        self._contents = {spec.name: EmbeddingContent.empty(spec.width) for spec in specs}
        # TensorFlow's registry has weak references.
        self._functions = [self._reader(spec) for spec in specs]

    @property
    def at_step(self) -> tf.Tensor:
        """Not read."""
        return tf.constant(0, tf.int64)

    def use(self, values: Mapping[str, np.ndarray]) -> None:
        """Reads from now on the rows that `row_values` has put into `values`, sorted by id."""
        for spec in self._specs:
            ids = values.get(f"{spec.name}{IDS}")
            empty = EmbeddingContent.empty(spec.width)
            self._contents[spec.name] = empty if ids is None else EmbeddingContent(ids, values[f"{spec.name}{ROWS}"])

    def read(self, table: int, ids: tf.Tensor, at_step: tf.Tensor) -> tf.Tensor:
        """See `Rows`."""
        del at_step
        rows = tf.numpy_function(self._functions[table], [ids], tf.float32)
        return tf.ensure_shape(rows, [None, self._specs[table].width])

    def _reader(self, spec: EmbeddingSpec) -> Callable[[np.ndarray], np.ndarray]:
        def read(ids: np.ndarray) -> np.ndarray:
            content = self._contents[spec.name]
            rows = initial_rows(spec, ids)
            if len(content.ids):
                at = np.minimum(np.searchsorted(content.ids, ids), len(content.ids) - 1)
                is_saved = content.ids[at] == ids
                rows[is_saved] = content.rows[at[is_saved]]
            return rows

        return read


def table_gradients(specs: Sequence[EmbeddingSpec], tensors: Sequence[tf.Tensor]) -> tuple[TableGradient, ...]:
    """The gradients of `TableUses.gradients`, whose tensors may be copies in another graph."""
    pairs = zip(specs, tensors[::2], tensors[1::2], strict=True)
    return tuple(TableGradient(spec, ids, values) for spec, ids, values in pairs)


def failure(message: str) -> str | None:
    """Which id was out of range, from TensorFlow's error message; None for any other error."""
    found = OUT_OF_RANGE.search(message)
    if found is None:
        return None
    key, rows, low, high = found.groups()
    return f"table {key} is read at ids from {low} to {high}, expected 0 to {int(rows) - 1}"


def _row_numbers(spec: EmbeddingSpec, ids: tf.Tensor) -> tf.Tensor:
    """The rows of ids, int64, of the same shape. The hash is FarmHash64 of the text, as in `keras.layers.Hashing`."""
    is_text = ids.dtype == tf.string
    if not ids.dtype.is_integer and not (is_text and spec.is_hashed):
        expected = "integers or strings" if spec.is_hashed else "integers; hash: true also takes strings"
        raise ProgramError(f"table {spec.key} is read at ids of type {ids.dtype.name}, expected {expected}")
    if spec.is_hashed:
        return tf.strings.to_hash_bucket_fast(ids if is_text else tf.as_string(ids), spec.rows)
    return _in_range(spec, tf.cast(ids, tf.int64))


def _in_range(spec: EmbeddingSpec, ids: tf.Tensor) -> tf.Tensor:
    """The ids, int64 `[n]`, once they are known to be rows of the table."""
    low, high = tf.reduce_min(ids), tf.reduce_max(ids)
    is_valid = tf.equal(tf.size(ids), 0) | ((low >= 0) & (high < spec.rows))
    text = f"psfleet: table {spec.key} of {spec.rows} rows"
    with tf.control_dependencies([tf.debugging.Assert(is_valid, [text, low, high])]):
        return tf.identity(ids)
