"""Tensors of the Open Inference Protocol: datatypes, shapes, and their elements as bytes and as lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from psfleet.errors import PsfleetError

DATATYPES: dict[str, type] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
"""NumPy's type of each datatype; elements of BYTES are `bytes`."""
BYTES = "BYTES"
LENGTH_BYTES = 4
"""Of the length before each element of BYTES, little-endian."""
MAX_DIMENSIONS = 64
"""Of a tensor, as of NumPy's arrays."""
MAX_SIZE = 2**63 - 1
"""Of a dimension, as in the messages of gRPC."""
MAX_MESSAGE_CHARACTERS = 600
"""Of an error. gRPC sends it in trailers, 12 bytes for a character at most; clients may refuse trailers of 8 KiB."""


class Status(Enum):
    """Why a query has no answer: the HTTP status, and the name of gRPC's status code."""

    INVALID = 400, "INVALID_ARGUMENT"
    UNAUTHENTICATED = 401, "UNAUTHENTICATED"
    NOT_FOUND = 404, "NOT_FOUND"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    FAILED = 500, "INTERNAL"
    UNAVAILABLE = 503, "UNAVAILABLE"

    def __init__(self, http: int, grpc: str) -> None:
        self.http = http
        self.grpc = grpc


class QueryError(PsfleetError):
    """A query has no answer; the client gets the message, or the beginning of a long one."""

    def __init__(self, status: Status, message: str) -> None:
        is_long = len(message) > MAX_MESSAGE_CHARACTERS
        super().__init__(f"{message[: MAX_MESSAGE_CHARACTERS - 1]}…" if is_long else message)
        self.status = status


class TensorMetadata(BaseModel):
    """An input or output of a model.

    Attributes:
        datatype: One of `DATATYPES`.
        shape: With the batch as first dimension; -1 for each dimension of any size.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(BaseModel):
    """The inputs and outputs of a model, in its own order."""

    model_config = ConfigDict(frozen=True)

    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def datatype_of(dtype: Any) -> str:
    """The datatype of NumPy's type; empty: there is none."""
    wanted = np.dtype(dtype)
    return next((name for name, each in DATATYPES.items() if np.dtype(each) == wanted), "")


def from_list(name: str, datatype: str, shape: Sequence[int], data: list[Any]) -> np.ndarray:
    """A tensor whose elements are in a flat or nested list.

    Raises:
        QueryError: The datatype is none, or the elements do not fit datatype and shape.
    """
    dtype = _dtype(name, datatype)
    flat = _flat(name, data)
    _check_count(name, shape, len(flat))
    try:
        if datatype == BYTES:
            array = np.empty(len(flat), np.object_)
            _check_kinds(name, datatype, flat, {str, bytes})
            array[:] = [each.encode() if isinstance(each, str) else each for each in flat]
        else:
            array = _numbers(name, datatype, dtype, flat)
    except (TypeError, ValueError, OverflowError) as error:
        raise QueryError(Status.INVALID, f"input {name!r}: {error}, expected elements of {datatype}") from error
    return _reshaped(name, array, shape)


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """A tensor whose elements are in row-major order, little-endian.

    Raises:
        QueryError: The datatype is none, or the bytes do not fit datatype and shape.
    """
    dtype = _dtype(name, datatype)
    if datatype == BYTES:
        elements = _prefixed(name, data)
        _check_count(name, shape, len(elements))
        array = np.empty(len(elements), np.object_)
        array[:] = elements
        return _reshaped(name, array, shape)
    expected = _count(name, shape) * dtype.itemsize
    if len(data) != expected:
        raise QueryError(
            Status.INVALID, f"input {name!r} has {len(data)} bytes, expected {expected} for {datatype} {list(shape)}"
        )
    return _reshaped(name, np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False), shape)


def to_bytes(array: np.ndarray) -> bytes:
    """The inverse of `from_bytes`."""
    if array.dtype != np.object_:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join(len(each).to_bytes(LENGTH_BYTES, "little") + each for each in array.ravel())


def to_list(array: np.ndarray) -> list[Any]:
    """The elements in row-major order, as JSON has them; BYTES as text."""
    if array.dtype == np.object_:
        return [each.decode(errors="replace") for each in array.ravel()]
    return array.ravel().tolist()


def _dtype(name: str, datatype: str) -> np.dtype[Any]:
    if datatype not in DATATYPES:
        raise QueryError(
            Status.INVALID, f"input {name!r} has datatype {datatype!r}, expected one of {', '.join(DATATYPES)}"
        )
    return np.dtype(DATATYPES[datatype])


def _flat(name: str, data: list[Any]) -> list[Any]:
    """The elements of nested lists; each level is read once, so that its time does not depend on the depth."""
    while list in (kinds := set(map(type, data))):
        if len(kinds) > 1:
            raise QueryError(
                Status.INVALID, f"input {name!r} has a list beside an element, expected lists of one depth"
            )
        data = list(chain.from_iterable(data))
    return data


def _numbers(name: str, datatype: str, dtype: np.dtype[Any], flat: list[Any]) -> np.ndarray:
    """Numbers that are not rounded to fit an integer type, and no text that NumPy would parse."""
    kinds = _check_kinds(name, datatype, flat, {bool} if dtype == np.bool_ else {int, float})
    if np.issubdtype(dtype, np.integer) and float in kinds:
        raise QueryError(Status.INVALID, f"input {name!r} has a fraction, expected {datatype}")
    return np.array(flat, dtype)


def _check_kinds(name: str, datatype: str, flat: list[Any], expected: set[type]) -> set[type]:
    """The types of elements, all of which are expected."""
    kinds = set(map(type, flat))
    if not kinds <= expected:
        raise QueryError(Status.INVALID, f"input {name!r} has an element of another kind, expected {datatype}")
    return kinds


def _count(name: str, shape: Sequence[int]) -> int:
    # Both limits keep the product, and its text, short.
    if len(shape) > MAX_DIMENSIONS:
        raise QueryError(
            Status.INVALID, f"input {name!r} has {len(shape)} dimensions, expected at most {MAX_DIMENSIONS}"
        )
    if any(isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= MAX_SIZE for each in shape):
        raise QueryError(
            Status.INVALID, f"input {name!r} has shape {list(shape)}, expected whole numbers from 0 to {MAX_SIZE}"
        )
    return math.prod(shape)


def _check_count(name: str, shape: Sequence[int], found: int) -> None:
    if _count(name, shape) != found:
        raise QueryError(
            Status.INVALID, f"input {name!r} has {found} elements, expected {math.prod(shape)} for shape {list(shape)}"
        )


def _reshaped(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """An array of so many elements in a shape: NumPy limits the dimensions, also of an array without elements."""
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise QueryError(
            Status.INVALID, f"input {name!r} has shape {list(shape)}, which no array can have: {error}"
        ) from error


def _prefixed(name: str, data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        if at > len(data):
            raise QueryError(Status.INVALID, f"input {name!r} has an element that ends after its bytes")
        found.append(data[start:at])
    return found
