"""A worker's two connections with one ps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from psfleet.errors import LostPeerError
from psfleet.exchange.buffers import BufferPool
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import MAX_TEXT_BYTES, PUSH, REPLY, Kind

Pools = Sequence[BufferPool]


class Peer:
    """The two connections with one ps.

    Args of the constructor:
        shard: Index of the ps.
        pools: Buffers of a reply, by segment.
    """

    def __init__(self, shard: int, replies: Connection, pushes: Connection, pools: Pools) -> None:
        self._shard = shard
        self._pushes, self._replies, self._pools = pushes, replies, pools
        # Threads begin with their first task.
        self._sender, self._receiver = ThreadPoolExecutor(1, "push"), ThreadPoolExecutor(1, "pull")
        self.num_bytes = sum(pool.num_bytes for pool in pools)

    def send(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> None:
        """Sends a push; raises OSError as `Connection`."""
        self._pushes.send([PUSH.pack(segment, loss, sum(each.nbytes for each in tensors)), *tensors])

    def send_later(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> Future[None]:
        """Sends a push after those before it, on another thread; a failure ends the wait for replies, too."""
        return self._sender.submit(self._send_or_end, segment, loss, tensors)

    def _send_or_end(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> None:
        try:
            self.send(segment, loss, tensors)
        except OSError:
            # The ps may have the header, and would give signs of life until the deadline of the step.
            self._replies.close()
            raise

    def receive(self, deadline: float) -> list[list[np.ndarray]]:
        """The replies to a push to each segment, by segment.

        Raises:
            OSError: As `Connection`.
            LostPeerError: The ps sends no reply, or none until the deadline.
        """
        found: dict[int, list[np.ndarray]] = {}
        while len(found) < len(self._pools):
            kind, segment, num_bytes = REPLY.unpack(self._replies.receive(REPLY.size))
            if kind == Kind.PULLED and segment < len(self._pools) and num_bytes == self._pools[segment].num_bytes:
                found[segment] = self._pools[segment].take()
                self._replies.receive_into(*found[segment])
            elif kind == Kind.ENDED:
                text = self._replies.receive(min(num_bytes, MAX_TEXT_BYTES)).decode(errors="replace")
                raise LostPeerError(f"ps {self._shard}: {text}")
            elif kind != Kind.ALIVE:
                raise LostPeerError(f"ps {self._shard} sends a reply of {num_bytes} bytes for segment {segment}")
            elif time.monotonic() > deadline:
                raise LostPeerError(f"DeadlineExceeded: ps {self._shard} has not completed the step in time")
        return [found[segment] for segment in range(len(self._pools))]

    def receive_later(self, deadline: float) -> Future[list[list[np.ndarray]]]:
        """As `receive`, on another thread."""
        return self._receiver.submit(self.receive, deadline)

    def close(self) -> None:
        """Ends the connections; from any thread."""
        self._pushes.close()
        self._replies.close()
        self._sender.shutdown(wait=False)
        self._receiver.shutdown(wait=False)
