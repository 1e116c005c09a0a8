"""The frames of a call through a command in a container."""

from __future__ import annotations

import pytest

from psfleet.control.frames import HEADER, MARK, MAX_BYTES, Frame, Frames, Kind
from psfleet.errors import LostPeerError

SENT = [
    Frame.of(Kind.CALL, method="Save", timeout_secs=None),
    Frame(Kind.MESSAGE, bytes(range(256)) * 3),
    Frame(Kind.MESSAGE),
    Frame(Kind.ALIVE),
    Frame(Kind.END),
]


@pytest.mark.parametrize("size", [1, 2, 6, 7, 8, 1000, 10_000])
def test_they_arrive_whole_wherever_the_stream_is_cut(size: int) -> None:
    stream, frames = b"".join(frame.packed() for frame in SENT), Frames()
    found = [frame for at in range(0, len(stream), size) for frame in frames.take(stream[at : at + size])]
    frames.end()
    assert found == SENT


@pytest.mark.parametrize("number", [1, 6, 7, 20])
def test_a_stream_that_ends_within_a_frame_is_an_error(number: int) -> None:
    frames = Frames()
    assert list(frames.take(Frame(Kind.MESSAGE, b"x" * 30).packed()[:number])) == []
    with pytest.raises(LostPeerError, match=rf"ended within a frame, of which {number} bytes are there"):
        frames.end()


@pytest.mark.parametrize("data", [b"Traceback (most recent call last)", b"p", HEADER.pack(MARK, 77, 0)])
def test_what_is_not_a_frame_is_refused_at_its_first_bytes(data: bytes) -> None:
    frames = Frames()
    if data == b"p":
        assert list(frames.take(data)) == []
        data = b"rint"
    with pytest.raises(LostPeerError, match=r"expected frames"):
        list(frames.take(data))


def test_a_frame_that_is_too_long_is_refused_before_it_is_kept() -> None:
    with pytest.raises(LostPeerError, match=rf"a frame of {MAX_BYTES + 1} bytes has been announced"):
        list(Frames().take(HEADER.pack(MARK, Kind.MESSAGE, MAX_BYTES + 1)))
    with pytest.raises(ValueError, match=rf"expected at most {MAX_BYTES}"):
        Frame(Kind.MESSAGE, bytes(MAX_BYTES + 1)).packed()


def test_a_frame_that_should_be_json_and_is_not_is_an_error() -> None:
    assert SENT[0].values() == {"method": "Save", "timeout_secs": None}
    for content in (b"no JSON", b"[1]", b"\xff"):
        with pytest.raises(LostPeerError, match=r"a frame of kind STATUS has .* expected JSON"):
            Frame(Kind.STATUS, content).values()
