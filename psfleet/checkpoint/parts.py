"""Parts of a checkpoint: one safetensors file per ps, with pieces of named tensors as keys rather than buckets."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from psfleet.errors import NoCheckpointError
from psfleet.layout import FlatLayout, Layout, Piece

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
"""In the error of a part that a ps does not write: the training program is at fault, not the disk."""


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


def write_part(
    folder: Path, shard: int, layout: Layout, content: ShardContent, step: int, generation: int, run: str
) -> PartRecord:
    """Writes a shard's part to `folder`, which is created if necessary, and flushes it to the disk.

    Raises:
        OSError: The disk is full, or the folder cannot be written; no file of the part's name remains.
        ValueError: The shape or dtype of an array of `content` differs from `layout`, or a slot's name has a slash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"format_version": FORMAT, "run": run, "step": str(step), "generation": str(generation)}
    metadata |= {"shard": str(shard), "num_ps": str(layout.num_ps)}
    path = folder / part_name(shard, layout.num_ps)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        num_bytes, digest = _write_safetensors(temporary, _named_pieces(layout, shard, content), metadata)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    return PartRecord(path.name, num_bytes, digest)


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named_pieces(layout: Layout, shard: int, content: ShardContent) -> dict[str, np.ndarray]:
    """Views of the content, by key."""
    named = {f"{SCALAR_PREFIX}{name}": np.asarray(value, np.float32) for name, value in content.scalars.items()}
    for name, value in named.items():
        if value.shape != ():
            raise ValueError(f"{name} of shard {shard} has shape {list(value.shape)}, expected []")
    for slot in content.slots:
        if not slot or "/" in slot:
            raise ValueError(f"slot name {slot!r}, expected one without a slash")
    layouts = vector_layouts(layout, tuple(content.slots))
    for prefix, vector in content.vectors().items():
        flat = layouts[prefix]
        if vector.shape != (flat.shard_size,) or vector.dtype != flat.unit_dtype:
            found, expected = f"{vector.dtype} {list(vector.shape)}", f"{flat.unit_dtype} {[flat.shard_size]}"
            raise ValueError(f"{prefix} of shard {shard} is {found}, expected {expected}")
        for piece in flat.pieces(shard):
            if piece.spec.is_saved:
                named[piece_key(prefix, piece)] = vector[piece.at : piece.at + piece.stop - piece.start]
    return named


def _write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> tuple[int, str]:
    """Writes a safetensors file tensor by tensor; returns its size in bytes and its SHA-256.

    `safetensors.numpy.save_file` would copy the whole shard in memory first, and hide errno in its own exception.
    """
    order = list(DTYPES)
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    keys = sorted(tensors, key=lambda key: order.index(tensors[key].dtype.name))
    for key in keys:
        start, end = end, end + tensors[key].nbytes
        header[key] = {
            "dtype": DTYPES[tensors[key].dtype.name], "shape": list(tensors[key].shape), "data_offsets": [start, end]
        }  # fmt: skip
    head = json.dumps(header, ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in _chunks(head, (tensors[key] for key in keys)):
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(head) + end, digest.hexdigest()


def _chunks(head: bytes, arrays: Iterable[np.ndarray]) -> Iterator[bytes | memoryview]:
    """The file's content in order; the arrays are not copied."""
    yield struct.pack("<Q", len(head))
    yield head
    for array in arrays:
        yield array.reshape(-1).view(np.uint8).data


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


@contextmanager
def open_part(
    folder: Path, shard: int, layout: Layout, slots: tuple[str, ...], run: str, generation: int
) -> Iterator[PartReader]:
    """Opens a part and checks its header against `layout`; the keys define where tensors were divided.

    Raises:
        NoCheckpointError: It is not a safetensors file, or does not match the manifest.
    """
    path = folder / part_name(shard, layout.num_ps)
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(safe_open(path, framework="numpy"))
        except (SafetensorError, OSError) as error:
            raise NoCheckpointError(f"{path} cannot be read: {error}") from error
        found = file.metadata() or {}
        expected = {"format_version": FORMAT, "run": run, "generation": str(generation)}
        for name, value in {**expected, "shard": str(shard), "num_ps": str(layout.num_ps)}.items():
            if found.get(name) != value:
                raise NoCheckpointError(f"{path}: {name} is {found.get(name)!r}, expected {value!r}")
        yield _checked(path, file, vector_layouts(layout, slots))


def _checked(path: Path, file: Any, layouts: Mapping[str, FlatLayout]) -> PartReader:
    """A reader of an open file, after a check of every key, dtype and shape against the layouts."""
    tensors = {
        f"{prefix}/{spec.name}": (prefix, spec.name, DTYPES[flat.unit_dtype])
        for prefix, flat in layouts.items()
        for spec in flat.specs
    }
    reader = PartReader({}, {})
    for key in sorted(file.keys()):
        view = file.get_slice(key)
        dtype, shape = view.get_dtype(), list(view.get_shape())
        full_name, _, start = key.rpartition("@")
        if key.startswith(SCALAR_PREFIX) and (dtype, shape) == (DTYPES["float32"], []):
            reader.scalars[key.removeprefix(SCALAR_PREFIX)] = np.asarray(file.get_tensor(key))
        elif full_name in tensors and POSITION.fullmatch(start) and dtype == tensors[full_name][2] and len(shape) == 1:
            piece = StoredPiece(int(start), int(start) + shape[0], key, file)
            reader.pieces.setdefault(tensors[full_name][:2], []).append(piece)
        else:
            raise NoCheckpointError(f"{path}: key {key!r}, {dtype} {shape}, is not in the manifest's layout")
    return reader
