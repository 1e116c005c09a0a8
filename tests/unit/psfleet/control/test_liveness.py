"""How long a peer that is called counts as silent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.clock import Clock

from psfleet.control import liveness
from psfleet.errors import NoAnswerError


class Peer:
    """The channel to a peer, and the request that it has not answered yet."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.is_answered = False

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        """Of a channel of gRPC."""
        return SimpleNamespace(future=self._ask)

    unary_stream = unary_unary

    def _ask(self, request: Any) -> Any:
        self.num_asked += 1
        return SimpleNamespace(done=lambda: self.is_answered, code=lambda: grpc.StatusCode.OK)


def test_a_peer_that_does_not_answer_is_given_up() -> None:
    peer: Any = Peer()
    clock = Clock(1000.0)
    watched = liveness.Liveness(peer, "the chief", clock)
    while watched.silent_secs < liveness.ANSWER_SECS - 0.3:
        clock.now += 0.2
        watched.check()
    assert (peer.num_asked, clock.now) == (1, pytest.approx(1030, abs=0.6))
    clock.now += 0.5
    with pytest.raises(NoAnswerError, match="the chief does not answer, 30 s after"):
        watched.check()


def test_a_caller_that_stood_still_finds_no_peer_silent() -> None:
    peer: Any = Peer()
    clock = Clock(1000.0)
    watched = liveness.Liveness(peer, "the chief", clock)
    for _ in range(3):
        clock.now += 40
        watched.check()
    assert watched.silent_secs == 3
    peer.is_answered = True
    clock.now += 0.2
    watched.check()
    assert (peer.num_asked, watched.silent_secs) == (1, 0)
