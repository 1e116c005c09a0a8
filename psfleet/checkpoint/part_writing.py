"""Encodes a shard as a checkpoint part, and writes parts: of this process's memory, or as they arrive."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.part_tables import arrays_of
from psfleet.checkpoint.parts import (
    DTYPES,
    FORMAT,
    SCALAR_PREFIX,
    PartRecord,
    ShardContent,
    part_name,
    piece_key,
    sync_folder,
    vector_layouts,
)
from psfleet.layout import Layout

Chunk = bytes | memoryview


@dataclass(frozen=True)
class EncodedPart:
    """A part as a sequence of bytes; `arrays`, which follow `head` in the file, are not copied."""

    file: str
    head: bytes
    arrays: tuple[np.ndarray, ...]

    def chunks(self) -> Iterator[Chunk]:
        """The file's content in order, in chunks of any size."""
        yield self.head
        for array in self.arrays:
            yield array.reshape(-1).view(np.uint8).data

    def blocks(self, num_bytes: int) -> Iterator[bytes]:
        """The file's content in order, in copies of `num_bytes` bytes; the last one may be smaller."""
        block = bytearray()
        for chunk in self.chunks():
            rest = memoryview(chunk)
            while len(rest):
                taken = rest[: num_bytes - len(block)]
                block += taken
                rest = rest[len(taken) :]
                if len(block) == num_bytes:
                    yield bytes(block)
                    block.clear()
        if block:
            yield bytes(block)

    def record(self) -> PartRecord:
        """The part's entry in the manifest; reads all of it for the SHA-256."""
        digest, num_bytes = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            num_bytes += len(chunk)
        return PartRecord(self.file, num_bytes, digest.hexdigest())


def encode_part(shard: int, layout: Layout, content: ShardContent, step: int, generation: int, run: str) -> EncodedPart:
    """A shard's part in safetensors format, whose arrays are views of `content`.

    `safetensors.numpy.save` would copy the whole shard in memory.

    Raises:
        ValueError: The shape or dtype of an array of `content` differs from `layout`, or a slot's name has a slash.
    """
    metadata = {"format_version": FORMAT, "run": run, "step": str(step), "generation": str(generation)}
    metadata |= {"shard": str(shard), "num_ps": str(layout.num_ps)}
    tensors = _named_pieces(layout, shard, content)
    head, starts = encode_head({key: (value.dtype, value.shape) for key, value in tensors.items()}, metadata)
    return EncodedPart(part_name(shard, layout.num_ps), head, tuple(tensors[key] for key in starts))


def encode_head(
    tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """What comes before the tensors in a safetensors file, and the position of each in the file, in their order there.

    Args:
        tensors: Dtype and shape by name.
    """
    order = list(DTYPES)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    starts, end = {}, 0
    for key in sorted(tensors, key=lambda key: order.index(tensors[key][0].name)):
        dtype, shape = tensors[key]
        starts[key], end = end, end + dtype.itemsize * math.prod(shape)
        header[key] = {
            "dtype": DTYPES[dtype.name], "shape": list(shape), "data_offsets": [starts[key], end]
        }  # fmt: skip
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return head, {key: len(head) + start for key, start in starts.items()}


def write_part(
    folder: Folder, shard: int, layout: Layout, content: ShardContent, step: int, generation: int, run: str
) -> PartRecord:
    """Writes a shard's part to `folder`, which is created if necessary, and flushes it to the disk.

    Raises:
        OSError: The disk is full, or the folder cannot be written; no file of the part's name remains.
        ValueError: The shape or dtype of an array of `content` differs from `layout`, or a slot's name has a slash.
    """
    part = encode_part(shard, layout, content, step, generation, run)
    if isinstance(folder, StoreFolder):
        record = part.record()
        (folder / part.file).write_chunks(part.chunks())
        return record
    return write_chunks(folder, part.file, part.chunks())


def write_chunks(
    folder: Path,
    name: str,
    chunks: Iterable[Chunk],
    check: Callable[[PartRecord], None] = lambda record: None,
    access: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> PartRecord:
    """Writes a part as its chunks arrive to `folder`, which is created if necessary, and flushes it to the disk.

    Args:
        check: Called with the record of what was written, before the file gets its name; raises if it is not right.
        access: Returns a context manager for each use of the disk; not for the wait for a chunk.

    Raises:
        OSError: The disk is full, or the folder cannot be written; no file of the part's name remains.
    """
    path = folder / name
    # Two processes may write one part, of which the older one was replaced: none changes the file of the other.
    temporary = folder / f".{name}.{secrets.token_hex(4)}.tmp"
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with access():
            folder.mkdir(parents=True, exist_ok=True)
            file = temporary.open("wb")
        with file:
            for chunk in chunks:
                digest.update(chunk)
                num_bytes += len(chunk)
                with access():
                    file.write(chunk)
            with access():
                file.flush()
                os.fsync(file.fileno())
        record = PartRecord(name, num_bytes, digest.hexdigest())
        check(record)
        with access():
            temporary.replace(path)
            sync_folder(folder)
    except BaseException:
        # Its own error, for example that the folder is a file, must not hide the first one.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return record


def _named_pieces(layout: Layout, shard: int, content: ShardContent) -> dict[str, np.ndarray]:
    """Views of the content, by key."""
    named = {f"{SCALAR_PREFIX}{name}": np.asarray(value, np.float32) for name, value in content.scalars.items()}
    for name, value in named.items():
        if value.shape != ():
            raise ValueError(f"{name} of shard {shard} has shape {list(value.shape)}, expected []")
    for slot in content.slots:
        if not slot or "/" in slot:
            raise ValueError(f"slot name {slot!r}, expected one without a slash")
    named |= arrays_of(content.tables)
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
