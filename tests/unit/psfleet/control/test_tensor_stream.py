"""Streams of tensors that are cut, changed or longer than they say, and memory that a sender may not demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from psfleet.control import run_control_pb2 as pb
from psfleet.control import tensor_stream
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import LostPeerError, UsageError
from psfleet.layout import TensorSpec

TENSORS = {"a": np.arange(6, dtype=np.float32), "b": np.array([1, 2], np.int64)}
NUM_BYTES = 40


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[pb.TensorMessage]:
    """A whole stream: the records, 24 and 16 bytes in chunks of at most 10, and the digest."""
    monkeypatch.setattr(tensor_stream, "CHUNK_BYTES", 10)
    return list(sending(pb.RunCall(), TENSORS))


def received(messages: list[pb.TensorMessage]) -> dict[str, np.ndarray]:
    return receiving(iter(messages), lambda specs: None)[1]


def test_a_whole_stream_is_what_was_sent(messages: list[pb.TensorMessage]) -> None:
    found = received(messages)
    assert list(found) == list(TENSORS)
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_stream_without_its_digest_has_ended_early(messages: list[pb.TensorMessage]) -> None:
    with pytest.raises(LostPeerError, match=f"has ended after {NUM_BYTES} of {NUM_BYTES} bytes"):
        received(messages[:-1])
    with pytest.raises(LostPeerError, match="has ended after 0 of 0 bytes"):
        received([])


def test_a_stream_that_lacks_its_last_bytes_was_changed(messages: list[pb.TensorMessage]) -> None:
    """Also with the digest of what is left."""
    short = messages[:-2]
    digest = tensor_stream.hashlib.sha256(b"".join(each.data for each in short)).hexdigest()
    with pytest.raises(LostPeerError, match=rf"was changed: 34 of {NUM_BYTES} bytes"):
        received([*short, pb.TensorMessage(sha256=digest)])


def test_a_stream_with_another_byte_was_changed(messages: list[pb.TensorMessage]) -> None:
    messages[1].data = bytes(10)
    with pytest.raises(LostPeerError, match="was changed"):
        received(messages)


def test_more_bytes_than_announced_are_refused_as_they_arrive(messages: list[pb.TensorMessage]) -> None:
    more = [*messages[:-1], pb.TensorMessage(data=b"."), messages[-1]]
    with pytest.raises(LostPeerError, match=f"has more than the {NUM_BYTES} bytes that it has announced"):
        received(more)


def test_what_the_receiver_refuses_takes_no_memory() -> None:
    huge = pb.TensorRecord(name="a", shape=[1 << 60], dtype="float32")

    def stream() -> Iterator[pb.TensorMessage]:
        yield pb.TensorMessage(tensors=[huge])
        pytest.fail("the data are not read")

    def check(specs: Mapping[str, TensorSpec]) -> None:
        assert specs["a"].shape == (1 << 60,)
        raise UsageError("not these")

    with pytest.raises(UsageError, match="not these"):
        receiving(stream(), check)
