"""Reads a safetensors file in an object store: its header, and of its tensors only the ranges that are asked for."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psfleet.checkpoint.object_store import BLOCK_BYTES, StoreFolder

HEAD_BYTES = 8
"""Length of the header, before it."""
MAX_HEADER_BYTES = 100_000_000
"""As in safetensors."""
AHEAD_BYTES = 4 << 20
"""Read with each range: a ps reads one range after the other, many of them small."""


class StoredPart:
    """What psfleet needs of the interface of `safetensors.safe_open`.

    Args of the constructor:
        path: The file.
        dtypes: NumPy's dtype of each dtype of safetensors that there may be.

    Raises:
        ValueError: It is not a safetensors file.
        StoreError: The store did not give it.
        FileNotFoundError: It does not exist.
    """

    def __init__(self, path: StoreFolder, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self._path = path
        self._block = b""
        self._at = 0
        head = self._read(0, HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            raise ValueError(f"it has {len(head)} bytes, expected a header")
        length = struct.unpack("<Q", head)[0]
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes, expected at most {MAX_HEADER_BYTES}")
        self._data = HEAD_BYTES + length
        header = json.loads(self._read(HEAD_BYTES, self._data))
        if not isinstance(header, dict):
            raise ValueError("its header is not a mapping")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise ValueError("the metadata in its header are not a mapping")
        self._metadata = {str(key): str(value) for key, value in metadata.items()}
        self._tensors = {str(key): _tensor(str(key), value, dtypes) for key, value in header.items()}

    def metadata(self) -> dict[str, str]:
        """The header's texts."""
        return self._metadata

    def keys(self) -> list[str]:
        """The names of the tensors."""
        return list(self._tensors)

    def get_slice(self, key: str) -> TensorSlice:
        """A tensor, of which nothing is read yet."""
        return TensorSlice(self, self._tensors[key])

    def get_tensor(self, key: str) -> np.ndarray:
        """A whole tensor."""
        tensor = self._tensors[key]
        return self.values(tensor, 0, tensor.size).reshape(tensor.shape)

    def values(self, tensor: _Tensor, start: int, stop: int) -> np.ndarray:
        """Elements of a tensor: `[stop - start]`.

        Raises:
            ValueError: The file ends before them.
        """
        first = self._data + tensor.begin
        width = tensor.dtype.itemsize
        found = self._read(first + start * width, first + stop * width)
        if len(found) != (stop - start) * width:
            raise ValueError(f"{tensor.key} ends after {len(found)} of {(stop - start) * width} bytes")
        return np.frombuffer(found, tensor.dtype)

    def _read(self, start: int, stop: int) -> bytes | bytearray:
        """Bytes of the file, fewer if it ends before; the last block that was read serves further ranges."""
        if start >= self._at and stop <= self._at + len(self._block):
            return self._block[start - self._at : stop - self._at]
        found = bytearray()
        while len(found) < stop - start:
            at = start + len(found)
            end = min(stop, at + BLOCK_BYTES) + AHEAD_BYTES
            self._at, self._block = at, self._path.read_range(at, end)
            found += self._block[: stop - at]
            if len(self._block) < end - at:
                # The file ends there; a store refuses a range behind its end.
                break
        return found


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the header; `begin` is the position of its first byte after the header."""

    key: str
    dtype: np.dtype[Any]
    name: str
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class TensorSlice:
    """A tensor of a file; indexing one with a slice reads a range of its first dimension."""

    file: StoredPart
    tensor: _Tensor

    def get_dtype(self) -> str:
        """The dtype's name in safetensors."""
        return self.tensor.name

    def get_shape(self) -> list[int]:
        """The shape."""
        return list(self.tensor.shape)

    def __getitem__(self, index: slice) -> np.ndarray:
        row = self.tensor.shape[1:]
        size = math.prod(row)
        return self.file.values(self.tensor, index.start * size, index.stop * size).reshape(-1, *row)


def _tensor(key: str, entry: Any, dtypes: Mapping[str, np.dtype[Any]]) -> _Tensor:
    """An entry of the header.

    Raises:
        ValueError: It is not one.
    """
    try:
        name, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
        tensor = _Tensor(key, dtypes[name], name, shape, begin)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the header's entry {key!r} is {entry!r}, expected dtype, shape and offsets") from error
    if min((*shape, begin)) < 0 or end - begin != tensor.size * tensor.dtype.itemsize:
        raise ValueError(f"the header's entry {key!r} is {entry!r}, expected offsets that fit its shape")
    return tensor
