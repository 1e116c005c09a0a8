"""A member that joins a front whose TensorFlow server does not reach it yet."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.inference.tensors import ModelMetadata
from worker_service.member.connection import FrontConnection

WAITS = "ipv4:172.25.0.2:2222: Failed to connect to remote host: connect() timed out"
"""gRPC names addresses, where the ClusterSpec may have names."""


def connection(*ends: Exception | None) -> tuple[FrontConnection, list[str]]:
    """One of `member-2`, whose requests to join end so, and what it has asked."""
    found, asked, left = FrontConnection.__new__(FrontConnection), list[str](), list(ends)

    def join(text: bytes) -> None:
        asked.append(json.loads(text)["address"])
        if (error := left.pop(0)) is not None:
            raise error

    found._index, found._name, found._own = 2, "2-abc", Address("member-2", 2222)
    found._metadata = ModelMetadata(inputs=(), outputs=())
    found._join = join
    return found, asked


def test_a_member_asks_again_until_the_front_reaches_it() -> None:
    member, asked = connection(tf.errors.UnavailableError(None, None, WAITS), None)
    member.join(3)
    assert asked == ["member-2:2222"] * 2


def test_a_member_whose_front_was_started_again_ends() -> None:
    member, asked = connection(tf.errors.AbortedError(None, None, "Session handle is not found"))
    with pytest.raises(LostPeerError, match="the front is gone: Session handle is not found"):
        member.join(3)
    assert len(asked) == 1
