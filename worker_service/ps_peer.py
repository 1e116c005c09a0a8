"""A worker's two connections with one ps."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from psfleet.errors import LostPeerError
from psfleet.exchange.buffers import BufferPool
from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import MessageLayout
from psfleet.exchange.messages import MAX_TEXT_BYTES, NOWHERE, Kind, Push, Reply, receive_places
from psfleet.exchange.shared_memory import FilledMemory, ReceivedMemory

logger = logging.getLogger("psfleet.worker")


@dataclass(frozen=True)
class Messages:
    """What is exchanged with a ps.

    Attributes:
        pushes: The tensors of a push, by segment and loss.
        replies: Buffers for those of a reply, by segment.
    """

    pushes: Mapping[tuple[int, int], MessageLayout]
    replies: Sequence[BufferPool]


class Peer:
    """The two connections with one ps.

    Args of the constructor:
        shard: Index of the ps.
        messages: What is exchanged.

    Raises:
        OSError: As `Connection`.
    """

    def __init__(self, shard: int, replies: Connection, pushes: Connection, messages: Messages) -> None:
        self._shard = shard
        self._pushes, self._replies = pushes, replies
        self._pushed, self._pools = messages.pushes, messages.replies
        # Threads begin with their first task.
        self._sender, self._receiver = ThreadPoolExecutor(1, "push"), ThreadPoolExecutor(1, "pull")
        self.num_bytes = sum(pool.num_bytes for pool in self._pools)
        self._received = ReceivedMemory({segment: pool.layout for segment, pool in enumerate(self._pools)})
        self._received.share(replies)
        self._filled = FilledMemory.received(pushes)
        # By segment and loss, where the next push may be put.
        keys = sorted(messages.pushes) if pushes.is_local else []
        self._places = dict(zip(keys, receive_places(pushes, len(keys)), strict=True))

    def send(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> None:
        """Sends a push; raises OSError as `Connection`."""
        size = sum(each.nbytes for each in tensors)
        push = Push(segment, loss, size, reply_at=self._received.free(segment))
        at, layout = self._places.pop((segment, loss), NOWHERE), self._pushed.get((segment, loss))
        # The ps says why it takes no message of another size.
        if layout is not None and size == layout.num_bytes and self._filled.put(at, layout, tensors):
            push, tensors = push._replace(at=at), ()
        push.send(self._pushes, tensors)

    def send_later(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> Future[None]:
        """Sends a push after those before it, on another thread; a failure ends the wait for replies, too."""
        return self._sender.submit(self._send_or_end, segment, loss, tensors)

    def _send_or_end(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> None:
        try:
            self.send(segment, loss, tensors)
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("a push to ps %d failed", self._shard)
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
            reply = Reply.receive(self._replies)
            segment, size = reply.segment, reply.num_bytes
            if reply.kind == Kind.PULLED and segment < len(self._pools) and size == self._pools[segment].num_bytes:
                found[segment] = self._tensors(reply)
                self._places[segment, reply.loss] = reply.push_at
            elif reply.kind == Kind.ENDED:
                text = self._replies.receive(min(size, MAX_TEXT_BYTES)).decode(errors="replace")
                raise LostPeerError(f"ps {self._shard}: {text}")
            elif reply.kind != Kind.ALIVE:
                raise LostPeerError(f"ps {self._shard} sends a reply of {size} bytes for segment {segment}")
            elif time.monotonic() > deadline:
                raise LostPeerError(f"DeadlineExceeded: ps {self._shard} has not completed the step in time")
        return [found[segment] for segment in range(len(self._pools))]

    def _tensors(self, reply: Reply) -> list[np.ndarray]:
        if reply.at != NOWHERE:
            return self._received.arrived(reply.segment, reply.at)
        tensors = self._pools[reply.segment].take()
        self._replies.receive_into(*tensors)
        return tensors

    def receive_later(self, deadline: float) -> Future[list[list[np.ndarray]]]:
        """As `receive`, on another thread."""
        return self._receiver.submit(self.receive, deadline)

    def close(self) -> None:
        """Ends the connections; from any thread."""
        self._pushes.close()
        self._replies.close()
        self._sender.shutdown(wait=False)
        self._receiver.shutdown(wait=False)
