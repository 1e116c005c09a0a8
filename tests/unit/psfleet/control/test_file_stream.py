"""Files as streams of messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.control import driver_control_pb2 as pb
from psfleet.control.download import CHUNK_BYTES
from psfleet.control.file_stream import receive, sending
from psfleet.errors import LostPeerError


def received(messages: list[pb.FileMessage]) -> bytes:
    content = bytearray()
    receive(iter(messages), content.extend, "share")
    return bytes(content)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_file_arrives_in_chunks(tmp_path: Path, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    (tmp_path / "file").write_bytes(content)
    messages = list(sending(tmp_path / "file"))
    assert max(len(each.data) for each in messages) <= CHUNK_BYTES
    assert received(messages) == content


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        (slice(0, -1), "the stream of file 'share' has ended early"),
        (slice(0, 0), "the stream of file 'share' has ended early"),
        (slice(1, None), "file 'share' was changed on its way"),
        (slice(None, None, 2), "file 'share' was changed on its way"),
    ],
)
def test_a_stream_without_some_of_its_messages_is_an_error(tmp_path: Path, keep: slice, text: str) -> None:
    (tmp_path / "file").write_bytes(b"x" * CHUNK_BYTES + b"y")
    messages = list(sending(tmp_path / "file"))
    assert len(messages) == 3
    with pytest.raises(LostPeerError, match=text):
        received(messages[keep])
