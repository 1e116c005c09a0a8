"""Reads a checkpoint's tensors: by name, or as a shard for any number of ps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.part_tables import ranges_of
from psfleet.checkpoint.parts import ShardContent, StoredPiece, open_part, vector_layouts
from psfleet.checkpoint.table_specs import check_tables
from psfleet.errors import BadJobError, NoCheckpointError
from psfleet.layout import EmbeddingContent, EmbeddingSpec, FlatLayout, Layout, TensorSpec, row_values

KINDS = {"parameters": "parameter", "state": "state", "frozen": "frozen"}
"""The vectors of a layout (fields of `Layout`), and the prefixes of their keys in a part."""
OTHER_PREFIX = {"state": "frozen", "frozen": "state"}
"""The prefix of a tensor that a checkpoint lacks under its own one.

A program that was changed can begin or cease to assign a variable, and older versions stored all of them as state.
"""


def read_shard(checkpoint: Checkpoint, layout: Layout, shard: int) -> ShardContent:
    """Reads the state of ps `shard` of `layout`; the checkpoint may have another number of ps and buckets.

    Only the headers of the parts and the ranges that the shard needs are read. Gaps between tensors are zeros, also in
    slots. Scalars are those of the ps of the same index, or of the last ps if the checkpoint has fewer.

    Raises:
        BadJobError: The tensors of `layout` differ from the checkpoint's.
        NoCheckpointError: The headers of the parts do not match the manifest.
    """
    check_tensors(checkpoint, layout)
    with _Parts(checkpoint) as parts:
        return ShardContent(
            parameters=parts.vector("parameter", layout.parameters, shard),
            slots={slot: parts.vector(f"slot/{slot}", layout.parameters, shard) for slot in checkpoint.slots},
            scalars=parts.scalars(min(shard, checkpoint.layout.num_ps - 1)),
            state=parts.vector("state", layout.state, shard),
            frozen=parts.vector("frozen", layout.frozen, shard),
            tables=parts.tables(shard, layout.num_ps),
        )


@dataclass(frozen=True)
class ShardReader:
    """The state of one ps in an open checkpoint, to be read range by range.

    Attributes:
        scalars: Of the optimizer, by name: `[]` float32.
    """

    scalars: dict[str, np.ndarray]
    _parts: _Parts
    _layouts: dict[str, FlatLayout]
    _shard: int
    _num_ps: int

    def ranges(self, max_bytes: int) -> Iterator[tuple[str, int, np.ndarray]]:
        """Ranges of each vector, except for the gaps between tensors, and then of each array of the tables.

        A range is the key of its vector (see `vector_layouts`) or array (see `arrays_of`), the index of its first
        element, and its values.

        Args:
            max_bytes: Of the values of one range.
        """
        for name, layout in self._layouts.items():
            yield from ((name, at, values) for at, values in self._parts.ranges(name, layout, self._shard, max_bytes))
        yield from ranges_of(self._parts.tables(self._shard, self._num_ps), max_bytes)


@contextmanager
def open_shard(checkpoint: Checkpoint, layout: Layout, shard: int) -> Iterator[ShardReader]:
    """Opens a checkpoint to read the state of ps `shard` of `layout`, in memory for one range and its tables.

    With another number of ps than the checkpoint's, its tables are in memory twice for a while, but no other rows.

    Raises:
        BadJobError: The tensors of `layout` differ from the checkpoint's.
        NoCheckpointError: The headers of the parts do not match the manifest.
    """
    check_tensors(checkpoint, layout)
    with _Parts(checkpoint) as parts:
        scalars = parts.scalars(min(shard, checkpoint.layout.num_ps - 1))
        yield ShardReader(scalars, parts, vector_layouts(layout, checkpoint.slots), shard, layout.num_ps)


def read_tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Reads all parameters, state and frozen tensors, by name.

    Raises:
        NoCheckpointError: The headers of the parts do not match the manifest.
    """
    tensors: dict[str, np.ndarray] = {}
    with _Parts(checkpoint) as parts:
        for kind, prefix in KINDS.items():
            flat: FlatLayout = getattr(checkpoint.layout, kind)
            single = FlatLayout(flat.specs, 1, unit_dtype=flat.unit_dtype)
            tensors |= single.unpack(parts.vector(prefix, single, 0))
    return tensors


def read_tables(checkpoint: Checkpoint) -> dict[str, EmbeddingContent]:
    """Reads the rows of all embedding tables that have been updated, by the table's name.

    Raises:
        NoCheckpointError: The parts do not match the manifest.
    """
    with _Parts(checkpoint) as parts:
        return parts.tables(0, 1)


def table_ranges(checkpoint: Checkpoint, table: EmbeddingSpec) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and values of the rows of a table that have been updated, in ranges; raises as `read_tables`."""
    with _Parts(checkpoint) as parts:
        yield from parts.table_ranges(table)


def read_values(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """What an evaluation needs: as `read_tensors`, and the rows of tables as `row_values`."""
    rows = row_values(read_tables(checkpoint)) if checkpoint.layout.embeddings else {}
    return {**read_tensors(checkpoint), **rows}


class _Parts:
    """Context manager for all parts of a checkpoint, which are opened and checked to cover each tensor exactly once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._stored: dict[tuple[str, str], list[StoredPiece]] = {}

    def __enter__(self) -> _Parts:
        at = self._checkpoint
        with ExitStack() as stack:
            self._readers = [
                stack.enter_context(open_part(at.folder, shard, at.layout, at.slots, at.run, at.generation))
                for shard in range(at.layout.num_ps)
            ]
            for prefix, flat in vector_layouts(at.layout, at.slots).items():
                for spec in flat.specs:
                    units = spec.num_bytes // np.dtype(flat.unit_dtype).itemsize
                    self._stored[prefix, spec.name] = self._tiles(prefix, spec.name, units)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def scalars(self, shard: int) -> dict[str, np.ndarray]:
        """The optimizer's scalars in the part of a ps of the checkpoint."""
        return self._readers[shard].scalars

    def tables(self, shard: int, num_ps: int) -> dict[str, EmbeddingContent]:
        """The updated rows that a ps of a new layout has, by the table's name."""
        # With the same number of ps, those of the part of the same index.
        is_same = num_ps == self._checkpoint.layout.num_ps
        try:
            readers = self._readers[shard : shard + 1] if is_same else self._readers
            read = [reader.tables.read(shard, num_ps) for reader in readers]
        except ValueError as error:
            raise NoCheckpointError(f"checkpoint {self._checkpoint.folder}: {error}") from error
        return {
            spec.name: EmbeddingContent.joined([part[spec.name] for part in read], spec.width)
            for spec in self._checkpoint.layout.embeddings
        }

    def table_ranges(self, table: EmbeddingSpec) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """See the function of this name."""
        try:
            for reader in self._readers:
                yield from reader.tables.ranges(table)
        except ValueError as error:
            raise NoCheckpointError(f"checkpoint {self._checkpoint.folder}: {error}") from error

    def vector(self, prefix: str, layout: FlatLayout, shard: int) -> np.ndarray:
        """Reads a vector of ps `shard` of a new layout: `[layout.shard_size]` of `layout.unit_dtype`."""
        vector = np.zeros(layout.shard_size, layout.unit_dtype)
        for at, values in self.ranges(prefix, layout, shard):
            vector[at : at + len(values)] = values
        return vector

    def ranges(
        self, prefix: str, layout: FlatLayout, shard: int, max_bytes: int | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """The ranges of that vector that are no gaps: index of the first element, values."""
        all_bytes = layout.shard_size * np.dtype(layout.unit_dtype).itemsize
        most = max(1, (max_bytes or all_bytes) // np.dtype(layout.unit_dtype).itemsize)
        for wanted in layout.pieces(shard):
            if not wanted.spec.is_saved:
                continue
            stored_prefix = prefix if (prefix, wanted.spec.name) in self._stored else OTHER_PREFIX[prefix]
            for piece in self._stored[stored_prefix, wanted.spec.name]:
                for start in range(max(wanted.start, piece.start), min(wanted.stop, piece.stop), most):
                    stop = min(start + most, wanted.stop, piece.stop)
                    yield wanted.at + start - wanted.start, piece.read(start, stop)

    def _tiles(self, prefix: str, name: str, units: int) -> list[StoredPiece]:
        """The pieces of a tensor of `units` units in ascending order.

        Raises:
            NoCheckpointError: They do not cover the tensor exactly once.
        """
        pieces = [piece for reader in self._readers for piece in reader.pieces.get((prefix, name), [])]
        pieces.sort(key=lambda piece: piece.start)
        reached = 0
        for piece in pieces:
            if piece.start != reached:
                break
            reached = piece.stop
        else:
            if reached == units:
                return pieces
        raise NoCheckpointError(
            f"checkpoint {self._checkpoint.folder}: the pieces of {prefix}/{name} have a gap or overlap at {reached} "
            f"of {units}"
        )


def check_tensors(checkpoint: Checkpoint, layout: Layout) -> None:
    """Checks that a checkpoint has the tensors of a layout, however they are divided; state may be frozen in either.

    Raises:
        BadJobError: A tensor or table is missing, is one too many, or has another shape or dtype.
    """
    # A table that the job does not name any more is also a parameter that the checkpoint lacks.
    check_tables(checkpoint, layout)
    for what, kinds in (("parameter", ("parameters",)), ("non-trainable", ("state", "frozen"))):
        old, new = _specs(checkpoint.layout, kinds), _specs(layout.saved, kinds)
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                raise BadJobError(
                    f"{what} tensor {name!r} is {_described(old.get(name))} in checkpoint {checkpoint.folder} and "
                    f"{_described(new.get(name))} in the program; --fresh starts a new run"
                )


def _specs(layout: Layout, kinds: Sequence[str]) -> dict[str, TensorSpec]:
    return {spec.name: spec for kind in kinds for spec in getattr(layout, kind).specs}


def _described(spec: TensorSpec | None) -> str:
    return f"{spec.dtype} {list(spec.shape)}" if spec else "missing"
