"""One ps's part of a checkpoint: a safetensors file whose keys speak of named tensors, not of buckets."""

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
"""Version of the files; another one is refused."""

DTYPES: Mapping[str, str] = {
    "float64": "F64", "int64": "I64", "uint64": "U64", "float32": "F32", "int32": "I32", "uint32": "U32",
    "float16": "F16", "int16": "I16", "uint16": "U16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""What a tensor may be made of: NumPy name to safetensors name, the widest first, as the format wants them aligned."""

SCALAR_PREFIX = "scalar/"
POSITION = re.compile("[0-9]{1,18}")


@dataclass
class ShardContent:
    """Everything that one ps holds; gaps between tensors are zeros after reading."""

    parameters: np.ndarray
    """`[layout.parameters.shard_size]` float32."""
    slots: dict[str, np.ndarray]
    """Optimizer slot name to `[layout.parameters.shard_size]` float32."""
    scalars: dict[str, np.ndarray]
    """Values of the optimizer that are no slots, by name: `[]` float32."""
    state: np.ndarray
    """`[layout.state.shard_size]` uint8."""
    frozen: np.ndarray
    """`[layout.frozen.shard_size]` uint8."""

    def vectors(self) -> dict[str, np.ndarray]:
        """The vectors by the prefix of their keys; the same prefixes as `vector_layouts`."""
        slots = {f"slot/{slot}": vector for slot, vector in self.slots.items()}
        return {"parameter": self.parameters, **slots, "state": self.state, "frozen": self.frozen}


@dataclass(frozen=True)
class PartRecord:
    """A written part as the manifest names it: file name in the folder, size, SHA-256 of the content in hex."""

    file: str
    num_bytes: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def part_name(shard: int, num_ps: int) -> str:
    """The file name of a shard."""
    return f"ps-{shard}-of-{num_ps}.safetensors"


def piece_key(prefix: str, piece: Piece) -> str:
    """The key of a piece: its tensor and the first of the tensor's units in the piece."""
    return f"{prefix}/{piece.spec.name}@{piece.start}"


def vector_layouts(layout: Layout, slots: Sequence[str]) -> dict[str, FlatLayout]:
    """The layout of each vector that a ps holds, by the prefix of its keys."""
    of_slots = {f"slot/{slot}": layout.parameters for slot in slots}
    return {"parameter": layout.parameters, **of_slots, "state": layout.state, "frozen": layout.frozen}


def write_part(
    folder: Path, shard: int, layout: Layout, content: ShardContent, step: int, generation: int, run: str
) -> PartRecord:
    """Writes a shard into `folder`, which is made if it is missing; after it returns the file is on the disk.

    Raises:
        OSError: The disk is full, or the folder cannot be written; nothing is left behind under the part's name.
        ValueError: An array of `content` has another shape or dtype than `layout` says, or a slot's name has a slash.
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
    """Brings a folder's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named_pieces(layout: Layout, shard: int, content: ShardContent) -> dict[str, np.ndarray]:
    """The content by key, as views."""
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
            named[piece_key(prefix, piece)] = vector[piece.at : piece.at + piece.stop - piece.start]
    return named


def _write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> tuple[int, str]:
    """Writes the format piece by piece; returns bytes and SHA-256.

    Not `safetensors.numpy.save_file`: that copies the whole shard in memory first and hides errno in its own exception.
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
    """The file's content in order, without copies of the arrays."""
    yield struct.pack("<Q", len(head))
    yield head
    for array in arrays:
        yield array.reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class StoredPiece:
    """A range of a tensor's units as it lies in an open part."""

    start: int
    stop: int
    key: str
    file: Any

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tensor's units `start` to `stop`, which lie in this piece: `[stop - start]`; nothing else is read."""
        values: np.ndarray = self.file.get_slice(self.key)[start - self.start : stop - self.start]
        return values


@dataclass(frozen=True)
class PartReader:
    """A part open for reading; made by `open_part`."""

    scalars: dict[str, np.ndarray]
    """The optimizer's values that are no slots, by name: `[]` float32."""
    pieces: dict[tuple[str, str], list[StoredPiece]]
    """The pieces in this part by prefix and tensor."""


@contextmanager
def open_part(
    folder: Path, shard: int, layout: Layout, slots: tuple[str, ...], run: str, generation: int
) -> Iterator[PartReader]:
    """Opens a part and checks its whole header against the tensors of `layout`; where they were cut, the keys say.

    Raises:
        NoCheckpointError: It is not a safetensors file, or not the part that the manifest promises.
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
            raise NoCheckpointError(f"{path}: key {key!r}, {dtype} {shape}, does not belong to the manifest's layout")
    return reader
