"""Parts of a checkpoint: one safetensors file per ps, with pieces of named tensors as keys rather than buckets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.part_tables import StoredTables, array_dtype
from psfleet.checkpoint.read_errors import read_error
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.stored_part import StoredPart
from psfleet.errors import NoCheckpointError
from psfleet.layout import EmbeddingContent, EmbeddingSpec, FlatLayout, Layout, Piece

FORMAT = "1"
"""Version of the file format; files of another version are rejected."""

DTYPES: Mapping[str, str] = {
    "float64": "F64", "int64": "I64", "uint64": "U64", "float32": "F32", "int32": "I32", "uint32": "U32",
    "float16": "F16", "int16": "I16", "uint16": "U16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Supported dtypes: NumPy name to safetensors name, the widest first, because the format requires alignment."""

SCALAR_PREFIX = "scalar/"
POSITION = re.compile("[0-9]{1,18}")
NOT_FINITE = "is NaN or infinite"
"""In the error of a ps that refuses to write its part, because the training program is at fault, not the disk."""


@dataclass
class ShardContent:
    """The state of one ps; gaps between tensors are zeros after reading."""

    parameters: np.ndarray
    """`[layout.parameters.shard_size]` float32."""
    slots: dict[str, np.ndarray]
    """Optimizer slot name to `[layout.parameters.shard_size]` float32."""
    scalars: dict[str, np.ndarray]
    """Values of the optimizer other than slots, by name: `[]` float32."""
    state: np.ndarray
    """`[layout.state.shard_size]` uint8."""
    frozen: np.ndarray
    """`[layout.frozen.shard_size]` uint8."""
    tables: dict[str, EmbeddingContent] = field(default_factory=dict)
    """The rows of each of `layout.embeddings` on this ps that have been updated, by the table's name."""

    def vectors(self) -> dict[str, np.ndarray]:
        """The vectors by key prefix, as in `vector_layouts`."""
        slots = {f"slot/{slot}": vector for slot, vector in self.slots.items()}
        return {"parameter": self.parameters, **slots, "state": self.state, "frozen": self.frozen}


@dataclass(frozen=True)
class PartRecord:
    """A part's entry in the manifest: file name, size in bytes, SHA-256 of the content in hexadecimal."""

    file: str
    num_bytes: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        return asdict(self)


def part_name(shard: int, num_ps: int) -> str:
    """The file name of a shard's part."""
    return f"ps-{shard}-of-{num_ps}.safetensors"


def piece_key(prefix: str, piece: Piece) -> str:
    """The key of a piece: the tensor's name, and the index of the piece's first unit in the tensor."""
    return f"{prefix}/{piece.spec.name}@{piece.start}"


def vector_layouts(layout: Layout, slots: Sequence[str]) -> dict[str, FlatLayout]:
    """The layout of each vector of a ps, by key prefix."""
    of_slots = {f"slot/{slot}": layout.parameters for slot in slots}
    return {"parameter": layout.parameters, **of_slots, "state": layout.state, "frozen": layout.frozen}


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class StoredPiece:
    """A range of a tensor's units in an open part."""

    start: int
    stop: int
    key: str
    file: Any

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads only the tensor's units `start` to `stop`, which must be in this piece: `[stop - start]`."""
        values: np.ndarray = self.file.get_slice(self.key)[start - self.start : stop - self.start]
        return values


@dataclass(frozen=True)
class PartReader:
    """A part that `open_part` opened for reading."""

    scalars: dict[str, np.ndarray]
    """Values of the optimizer other than slots, by name: `[]` float32."""
    pieces: dict[tuple[str, str], list[StoredPiece]]
    """The pieces in this part, by key prefix and tensor name."""
    tables: StoredTables


@contextmanager
def open_part(
    folder: Folder, shard: int, layout: Layout, slots: tuple[str, ...], run: str, generation: int
) -> Iterator[PartReader]:
    """Opens a part and checks its header against `layout`; the keys define where tensors were divided.

    Raises:
        NoCheckpointError: It is not a safetensors file, or does not match the manifest.
        StoreError: A store did not give it.
    """
    path = folder / part_name(shard, layout.num_ps)
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(_opened(path))
        except StoreError:
            raise
        except (SafetensorError, OSError, ValueError) as error:
            raise read_error(str(path), error) from error
        found = file.metadata() or {}
        expected = {"format_version": FORMAT, "run": run, "generation": str(generation)}
        for name, value in {**expected, "shard": str(shard), "num_ps": str(layout.num_ps)}.items():
            if found.get(name) != value:
                raise NoCheckpointError(f"{path}: {name} is {found.get(name)!r}, expected {value!r}")
        yield _checked(path, file, vector_layouts(layout, slots), layout.embeddings)


def _opened(path: Folder) -> AbstractContextManager[Any]:
    """Context manager for a safetensors file."""
    if isinstance(path, StoreFolder):
        return nullcontext(StoredPart(path, {name: np.dtype(dtype) for dtype, name in DTYPES.items()}))
    # For the true error: safetensors reports each file that it cannot open as missing.
    path.open("rb").close()
    opened: AbstractContextManager[Any] = safe_open(path, framework="numpy")
    return opened


def _checked(
    path: Folder, file: Any, layouts: Mapping[str, FlatLayout], embeddings: tuple[EmbeddingSpec, ...]
) -> PartReader:
    """A reader of an open file, after a check of every key, dtype and shape against the layouts."""
    tensors = {
        f"{prefix}/{spec.name}": (prefix, spec.name, DTYPES[flat.unit_dtype])
        for prefix, flat in layouts.items()
        for spec in flat.specs
    }
    scalars: dict[str, np.ndarray] = {}
    pieces: dict[tuple[str, str], list[StoredPiece]] = {}
    of_tables: list[str] = []
    for key in sorted(file.keys()):
        view = file.get_slice(key)
        dtype, shape = view.get_dtype(), list(view.get_shape())
        full_name, _, start = key.rpartition("@")
        row = array_dtype(key, embeddings)
        if key.startswith(SCALAR_PREFIX) and (dtype, shape) == (DTYPES["float32"], []):
            scalars[key.removeprefix(SCALAR_PREFIX)] = np.asarray(file.get_tensor(key))
        elif row is not None and (dtype, shape[1:]) == (DTYPES[row[0].name], row[1]) and shape:
            of_tables.append(key)
        elif full_name in tensors and POSITION.fullmatch(start) and dtype == tensors[full_name][2] and len(shape) == 1:
            piece = StoredPiece(int(start), int(start) + shape[0], key, file)
            pieces.setdefault(tensors[full_name][:2], []).append(piece)
        else:
            raise NoCheckpointError(f"{path}: key {key!r}, {dtype} {shape}, is not in the manifest's layout")
    return PartReader(scalars, pieces, StoredTables(tuple(of_tables), embeddings, file))
