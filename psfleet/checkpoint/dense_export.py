"""Writes all tensors of a checkpoint to a safetensors file, of embedding tables all rows, in blocks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import BinaryIO

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.part_writing import encode_head
from psfleet.checkpoint.tensors import read_tensors, table_ranges
from psfleet.errors import UsageError
from psfleet.layout import initial_blocks


def write_dense(checkpoint: Checkpoint, path: Path) -> int:
    """Writes the file, in memory for the tensors that are no tables, and the ids of one table's rows in one part.

    Returns:
        The number of tensors.

    Raises:
        NoCheckpointError: The parts do not match the manifest.
        OSError: The file cannot be written.
    """
    tensors = read_tensors(checkpoint)
    tables = {table.name: table for table in checkpoint.layout.embeddings}
    kinds = {name: (value.dtype, value.shape) for name, value in tensors.items()}
    kinds |= {name: (np.dtype(np.float32), (table.rows, table.width)) for name, table in tables.items()}
    head, starts = encode_head(kinds, {"run": checkpoint.run, "step": str(checkpoint.step)})
    with path.open("wb") as file:
        file.write(head)
        for name in starts:
            if name in tensors:
                file.write(np.ascontiguousarray(tensors[name]).data)
                continue
            for _, block in initial_blocks(tables[name]):
                file.write(block.data)
        for name, table in tables.items():
            for ids, rows in table_ranges(checkpoint, table):
                _put(file, starts[name], ids, rows)
    return len(starts)


def _put(file: BinaryIO, start: int, ids: np.ndarray, rows: np.ndarray) -> None:
    """Writes rows to their places in a table that begins at `start`; successive ones at once."""
    order = np.argsort(ids)
    ids, rows = ids[order], rows[order]
    bounds = [0, *(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), len(ids)]
    row_bytes = rows.itemsize * rows.shape[1]
    for first, end in itertools.pairwise(bounds):
        file.seek(start + int(ids[first]) * row_bytes)
        file.write(rows[first:end].data)


def require_memory(checkpoint: Checkpoint, out: Path, available_bytes: int) -> None:
    """Refuses a Keras format for tables that do not fit into memory: all are in the model, and one of them twice.

    Args:
        available_bytes: Of physical memory.

    Raises:
        UsageError: Names the size, and the format that needs less.
    """
    sizes = [4 * table.rows * table.width for table in checkpoint.layout.embeddings]
    needed = sum(sizes) + max(sizes, default=0)
    if needed > available_bytes:
        raise UsageError(
            f"--out {out} needs {needed / 2**30:.1f} GiB of memory for the embedding tables, and this machine has "
            f"{available_bytes / 2**30:.1f} GiB, expected --out *.safetensors, which is written in blocks"
        )
