"""Parts in a store that are cut off, or are none: an error that says what is wrong, whatever the bytes are."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from psfleet.checkpoint import stored_part
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.stored_part import StoredPart

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype(np.float32)}
VALUES = np.arange(6, dtype=np.float32)


def part(entry: object, data: bytes = VALUES.tobytes()) -> bytes:
    """A file with one tensor `a`."""
    header = json.dumps({"__metadata__": {"run": "run"}, "a": entry}).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}


def opened(bucket: StoreFolder, content: bytes) -> StoredPart:
    (bucket / "part").write_bytes(content)
    return StoredPart(bucket / "part", DTYPES)


def test_a_tensor_is_read_whole_or_in_part(bucket: StoreFolder) -> None:
    found = opened(bucket, part(entry()))
    assert (found.keys(), found.metadata()) == (["a"], {"run": "run"})
    np.testing.assert_array_equal(found.get_tensor("a"), VALUES.reshape(2, 3))
    np.testing.assert_array_equal(found.get_slice("a")[1:2], VALUES.reshape(2, 3)[1:2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1234", "it has 4 bytes, expected a header"),
        (struct.pack("<Q", 4) + b"text", "Expecting value"),
        (struct.pack("<Q", 2) + b"[]", "its header is not a mapping"),
        (part(7), r"entry 'a' is 7, expected dtype, shape and offsets"),
        (part(entry(dtype="F999")), "expected dtype, shape and offsets"),
        (part(entry(shape=[-2, -3])), "expected offsets that fit its shape"),
        (part(entry(data_offsets=[-4, 20])), "expected offsets that fit its shape"),
        (part(entry(data_offsets=[0, 20])), "expected offsets that fit its shape"),
        (part(entry(data_offsets=["0", "x"])), "expected dtype, shape and offsets"),
        (part(entry(data_offsets=[[], 24])), "expected dtype, shape and offsets"),
        (part(entry(data_offsets=[0, None])), "expected dtype, shape and offsets"),
    ],
)
def test_what_is_no_part_is_refused_when_it_is_opened(bucket: StoreFolder, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(bucket, content)


def test_a_header_that_is_too_long_is_not_read(bucket: StoreFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_part, "MAX_HEADER_BYTES", 10)
    with pytest.raises(ValueError, match=r"its header has \d+ bytes, expected at most 10"):
        opened(bucket, part(entry()))


def test_a_tensor_that_ends_early_is_an_error(bucket: StoreFolder) -> None:
    found = opened(bucket, part(entry(), VALUES.tobytes()[:-1]))
    with pytest.raises(ValueError, match="a ends after 23 of 24 bytes"):
        found.get_tensor("a")
