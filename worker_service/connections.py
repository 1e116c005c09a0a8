"""A worker's connections with the ps: opened for each session, and used by operations of its step."""

from __future__ import annotations

import itertools
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.exchange.buffers import BufferPool
from psfleet.exchange.connection import SILENT_SECS, Connection
from psfleet.exchange.messages import MAX_TEXT_BYTES, PUSH, REPLY, Answer, Greeting, Kind, receive_text, send_text
from psfleet.exchange.tls import EncryptedSocket, client_context
from worker_service.session_errors import CONNECTION, UnreachableError

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

INLINE_BYTES = 1 << 17
"""Messages up to it are sent and received one after the other: they fit into the buffers of the kernel."""

Pools = Sequence[BufferPool]


class Peer:
    """The two connections with one ps.

    Args of the constructor:
        shard: Index of the ps.
        pools: Buffers of a reply, by segment.
    """

    def __init__(self, shard: int, pushes: Connection, replies: Connection, pools: Pools) -> None:
        self._shard = shard
        self._pushes, self._replies, self._pools = pushes, replies, pools
        # Threads begin with their first task.
        self._sender, self._receiver = ThreadPoolExecutor(1, "push"), ThreadPoolExecutor(1, "pull")
        self.num_bytes = sum(pool.num_bytes for pool in pools)

    def send(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> None:
        """Sends a push; raises OSError as `Connection`."""
        self._pushes.send([PUSH.pack(segment, loss, sum(each.nbytes for each in tensors)), *tensors])

    def send_later(self, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> Future[None]:
        """Sends a push after those before it, on another thread."""
        return self._sender.submit(self.send, segment, loss, tensors)

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
                for each in found[segment]:
                    self._replies.receive_into(each)
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


class Connections:
    """The connections of a worker, by the index of the ps.

    Each session has a number, which its calls carry: an operation of a session that has ended, and still runs, must not
    use the connections of the next one.

    Args of the constructor:
        greeting: Of this worker; `session` and `carries` are filled in.
        identity: TLS credentials of this process; None: connections are plain.
        role: Of the ps in their certificates.
        step_secs: Until a step is complete.
        connect_secs: Until a ps accepts a connection.
    """

    def __init__(
        self, greeting: Greeting, identity: Identity | None, role: str, step_secs: float, connect_secs: float
    ) -> None:
        self._greeting = greeting
        self._identity = identity
        self._role = role
        self._step_secs = step_secs
        self._connect_secs = connect_secs
        self._pools: dict[int, Pools] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._number = 0
        self._peers: dict[int, Peer] = {}
        self._sending: list[Future[None]] = []

    def expect(self, shard: int, pools: Pools) -> None:
        """Sets what the replies of a ps consist of, by segment; before `open`."""
        self._pools[shard] = pools

    @property
    def shards(self) -> list[int]:
        """The ps that have connections."""
        return sorted(self._pools)

    def open(self, addresses: Sequence[Address], ports: Sequence[int]) -> int:
        """Connects with each ps; returns the number of the session.

        Args:
            addresses: Of all ps.
            ports: For exchanges, of all ps.

        Raises:
            UnreachableError: A ps does not answer.
            LostPeerError: A ps refuses this worker.
        """
        self.close()
        greeting = self._greeting.model_copy(update={"session": secrets.token_hex(8)})
        peers = {shard: self._connected(shard, addresses[shard], ports[shard], greeting) for shard in self.shards}
        with self._lock:
            self._number, self._peers, self._sending = next(self._numbers), peers, []
            return self._number

    def close(self) -> None:
        """Ends the connections, and what waits for them; from any thread."""
        with self._lock:
            peers, self._peers, self._number = self._peers, {}, 0
        for peer in peers.values():
            peer.close()

    def exchange(self, session: int, shard: int, loss: int, tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Pushes to the only segment of the only ps, and waits for its reply; raises as `finish`."""
        deadline = time.monotonic() + self._step_secs
        with self._failing(session) as peers:
            peers[shard].send(0, loss, tensors)
            return peers[shard].receive(deadline)[0]

    def start(self, session: int, shard: int, segment: int, loss: int, tensors: Sequence[np.ndarray]) -> None:
        """Begins a push; raises as `finish`."""
        with self._failing(session) as peers:
            self._sending.append(peers[shard].send_later(segment, loss, tensors))

    def finish(self, session: int) -> list[np.ndarray]:
        """Waits for the replies to all pushes of a step; their tensors by ps and segment.

        Raises:
            LostPeerError: A connection has ended, or the session.
        """
        deadline = time.monotonic() + self._step_secs
        with self._failing(session) as peers:
            first, *others = (peers[shard] for shard in self.shards)
            is_small = all(each.num_bytes <= INLINE_BYTES for each in others)
            later = [] if is_small else [each.receive_later(deadline) for each in others]
            found = [first.receive(deadline)]
            found += [each.receive(deadline) for each in others] if is_small else [each.result() for each in later]
            for each in self._sending:
                each.result()
            self._sending.clear()
            return [tensor for of_shard in found for of_segment in of_shard for tensor in of_segment]

    @contextmanager
    def _failing(self, session: int) -> Iterator[Mapping[int, Peer]]:
        """Context manager in which the connections of a session are used; raises as `finish`."""
        with self._lock:
            peers, is_open = self._peers, session == self._number
        if not is_open:
            raise LostPeerError(f"{CONNECTION}the session has ended")
        try:
            yield peers
        except (OSError, RuntimeError, CancelledError) as error:
            self._end(session)
            silent = f"nothing was heard of a ps for {SILENT_SECS:g} s"
            raise LostPeerError(CONNECTION + (silent if isinstance(error, TimeoutError) else str(error))) from error
        except LostPeerError as error:
            self._end(session)
            raise LostPeerError(f"{CONNECTION}{error}") from error

    def _end(self, session: int) -> None:
        """Ends a session after a failure: what was pushed has no reply that a later step could take for its own."""
        with self._lock:
            is_open = session == self._number
        if is_open:
            self.close()

    def _connected(self, shard: int, address: Address, port: int, greeting: Greeting) -> Peer:
        pair: list[Connection] = []
        try:
            for carries in ("replies", "pushes"):
                connection = self._connection(address, port)
                pair.append(connection)
                send_text(connection, greeting.model_copy(update={"carries": carries}))
                answer = receive_text(connection, Answer)
                if answer.refusal:
                    raise LostPeerError(f"ps {shard} refuses this worker: {answer.refusal}")
                connection.set_timeout(SILENT_SECS)
        except BaseException as error:
            # Also an interrupt: nothing else closes them.
            for each in pair:
                each.close()
            if isinstance(error, OSError):
                text = f"ps {shard} accepts no connection at {address.host}:{port}: {error}"
                raise UnreachableError(text) from error
            raise
        replies, pushes = pair
        return Peer(shard, pushes, replies, self._pools[shard])

    def _connection(self, address: Address, port: int) -> Connection:
        sock = socket.create_connection((address.host.strip("[]"), port), self._connect_secs)
        try:
            encrypted = None
            if self._identity is not None and not address.is_loopback:
                encrypted = EncryptedSocket(sock, client_context(self._identity), self._role)
            return Connection(sock, encrypted)
        except BaseException:
            sock.close()
            raise
