"""Calls every ps at once with a worker's heartbeat: one that does not answer delays none of the others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from psfleet.control import control_pb2 as pb
from psfleet.control.client import CALL_SECS, PsClient
from psfleet.errors import BadJobError, LostPeerError, ReplacedError

logger = logging.getLogger("psfleet.worker")

BEAT_SECS = 1.0
"""Between two heartbeats."""
CALLS_AT_ONCE = 1 + math.ceil(CALL_SECS / BEAT_SECS)
"""Open calls to one ps that does not answer: after each loss it is called again, before the earlier calls end."""


@dataclass(frozen=True)
class Replies:
    """What the ps have answered to one heartbeat.

    Attributes:
        states: By the index of the ps; None where the call failed. Without those that have not answered yet.
        refusal: Why a ps refuses this process: another one has its worker's index; empty: none does.
    """

    states: Mapping[int, pb.ShardState | None]
    refusal: str = ""


class HeartbeatCalls:
    """The open calls to each ps, of which there is one at most in a session; used by the heartbeat thread alone."""

    def __init__(self, ps: Sequence[PsClient]) -> None:
        self._ps = ps
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE * len(ps), "heartbeat-call")
        self._open: dict[int, Future[pb.ShardState]] = {}
        self._era = 0

    def make(self, era: int, request: Callable[[], pb.HeartbeatRequest], timeout_secs: float) -> Replies:
        """Calls each ps that has answered the call before, and waits for answers.

        Args:
            era: Calls of an earlier one are of no use: a ps that is gone now may have answered them.
            request: Returns the request for one ps.
            timeout_secs: For the answers; a call without one stays open.
        """
        if era != self._era:
            self._era, self._open = era, {}
        for shard, client in enumerate(self._ps):
            if shard not in self._open:
                self._open[shard] = self._pool.submit(client.heartbeat, request())
        wait(self._open.values(), timeout_secs)
        done = {shard: call for shard, call in self._open.items() if call.done()}
        self._open = {shard: call for shard, call in self._open.items() if shard not in done}
        refusals = [str(error) for call in done.values() if isinstance(error := call.exception(), ReplacedError)]
        return Replies({shard: _reply(call) for shard, call in done.items()}, refusals[0] if refusals else "")

    def close(self, request: Callable[[], pb.HeartbeatRequest]) -> None:
        """Calls every ps a last time, and waits for the answers; called once the heartbeat thread has ended."""
        wait([self._pool.submit(client.heartbeat, request()) for client in self._ps], CALL_SECS)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _reply(call: Future[pb.ShardState]) -> pb.ShardState | None:
    """The ps's reply; None if the call failed."""
    error = call.exception()
    if error is None:
        return call.result()
    if not isinstance(error, LostPeerError | BadJobError | ReplacedError):
        raise error
    logger.debug("heartbeat failed: %s", error)
    return None
