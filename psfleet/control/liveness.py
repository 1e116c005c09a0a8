"""Detects a peer that does not answer any more during a call to it, which may take as long as the run does.

A process that is frozen keeps its connections, and its machine accepts new ones for it. Only a request that it must
answer distinguishes it from one that is busy. The health service answers whatever else the process waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psfleet.errors import NoAnswerError
from psfleet.polling import WatchedTime

ANSWER_SECS = 30.0
"""A peer that has answered nothing for so long counts as frozen: a call to it ends with `NoAnswerError`."""
ASK_SECS = 2.0
"""Pause between a peer's last answer and the next request."""
UNANSWERED_SECS = 4.0
"""A call that fails after such a silence has failed because the peer is frozen: a dead one refuses connections at once.
Shorter than gRPC waits for a connection."""


class Liveness:
    """Whether one peer answers, while a call to it is made; `check` is called by one thread, several times a second.

    Args of the constructor:
        to_peer: A channel to it.
        who: Names it in messages.
        clock: Returns the seconds since some moment.
    """

    def __init__(self, to_peer: grpc.Channel, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._who = who
        self._ask = health_pb2_grpc.HealthStub(to_peer).Check
        self._asked: Any = None
        self._silence = WatchedTime(clock)

    @property
    def silent_secs(self) -> float:
        """Since its last answer, or since the call began."""
        return self._silence.secs

    def check(self) -> None:
        """Sends the next request if it is due.

        Raises:
            NoAnswerError: It has answered nothing for `ANSWER_SECS`.
        """
        self._silence.look()
        if self._asked is not None and self._asked.done():
            if self._asked.code() == grpc.StatusCode.OK:
                self._silence.restart()
            self._asked = None
        if self._asked is None and self.silent_secs >= ASK_SECS:
            self._asked = self._ask.future(health_pb2.HealthCheckRequest())
        if self.silent_secs >= ANSWER_SECS:
            raise no_answer(self._who, self.silent_secs)

    def close(self) -> None:
        """Cancels the request that is not answered yet."""
        if self._asked is not None:
            self._asked.cancel()


def no_answer(who: str, silent_secs: float) -> NoAnswerError:
    """The error of a peer that does not answer."""
    reason = f"{who} does not answer, {silent_secs:.0f} s after the last sign of it: its process is frozen or cut off"
    return NoAnswerError(reason, silent_secs)
