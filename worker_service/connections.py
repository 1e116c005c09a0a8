"""A worker's connections with the ps: opened for each session, and used by operations of its step."""

from __future__ import annotations

import itertools
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.exchange.connection import SILENT_SECS, Connection
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.tls import EncryptedSocket, client_context
from psfleet.exchange.unix_sockets import connected_beside
from worker_service.ps_peer import Messages, Peer
from worker_service.session_errors import CONNECTION, LOST, LostConnectionError, UnreachableError

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

CONNECT_SECS = 10.0
"""Until a ps accepts a connection, and for each byte of its answer."""
Way = Literal["pushes", "replies"]
WAYS: tuple[Way, Way] = ("replies", "pushes")
"""In the order in which a ps expects its connections."""
INLINE_BYTES = 1 << 17
"""Messages up to it are sent and received one after the other: in a few pieces they fit into the kernel's buffers."""


class Connections:
    """The connections of a worker, by the index of the ps.

    Each session has a number, which its calls carry: an operation of a session that has ended, and still runs, must not
    use the connections of the next one.

    Args of the constructor:
        greeting: Of this worker; `session` and `carries` are filled in.
        identity: TLS credentials of this process; None: connections are plain.
        role: Of the ps in their certificates.
        step_secs: Until a step is complete.
        unix_sockets: Whether they are Unix sockets if the ps is a process of this machine and user.
    """

    def __init__(
        self, greeting: Greeting, identity: Identity | None, role: str, step_secs: float, unix_sockets: bool
    ) -> None:
        self._greeting = greeting
        self._identity = identity
        self._role = role
        self._step_secs = step_secs
        self._unix_sockets = unix_sockets
        self._messages: dict[int, Messages] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._number = 0
        self._peers: dict[int, Peer] = {}
        self._opening: list[Connection] | None = None
        self._sending: list[Future[None]] = []

    def expect(self, shard: int, messages: Messages) -> None:
        """Sets what is exchanged with a ps; before `open`."""
        self._messages[shard] = messages

    @property
    def shards(self) -> list[int]:
        """The ps that have connections."""
        return sorted(self._messages)

    def open(self, addresses: Sequence[Address], ports: Sequence[int]) -> int:
        """Connects with each ps; returns the number of the session.

        Args:
            addresses: Of all ps.
            ports: For exchanges, of all ps.

        Raises:
            UnreachableError: A ps does not answer.
            LostConnectionError: A ps has ended a connection that it had accepted.
            LostPeerError: A ps refuses this worker, or `close` was called meanwhile.
        """
        self.close()
        with self._lock:
            opening = self._opening = []
            # They refer to the peers before, and to what was pushed.
            self._sending = []
        greeting = self._greeting.model_copy(update={"session": secrets.token_hex(8)})
        peers: dict[int, Peer] = {}
        try:
            for shard in self.shards:
                at = shard, addresses[shard], ports[shard], greeting
                replies, pushes = (self._greeted(*at, way, opening) for way in WAYS)
                peers[shard] = self._peer(shard, replies, pushes)
            with self._lock:
                if self._opening is not opening:
                    raise LostPeerError("the session was closed while its connections were opened")
                self._opening = None
                self._number, self._peers = next(self._numbers), peers
                return self._number
        except BaseException:
            # Also an interrupt: nothing else closes them.
            for each in opening:
                each.close()
            raise

    def close(self) -> None:
        """Ends the connections, those that are being opened included, and what waits for them; from any thread."""
        with self._lock:
            peers, self._peers, self._number, self._sending = self._peers, {}, 0, []
            opening, self._opening = self._opening or [], None
            for connection in opening:
                connection.close()
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
            raise LostPeerError(f"{LOST}{CONNECTION}the session has ended")
        try:
            yield peers
        except (OSError, RuntimeError, CancelledError) as error:
            self._end(session)
            silent = f"nothing was heard of a ps for {SILENT_SECS:g} s"
            text = silent if isinstance(error, TimeoutError) else str(error)
            raise LostPeerError(f"{LOST}{CONNECTION}{text}") from error
        except LostPeerError as error:
            self._end(session)
            raise LostPeerError(f"{CONNECTION}{error}") from error

    def _end(self, session: int) -> None:
        """Ends a session after a failure: what was pushed has no reply that a later step could take for its own."""
        with self._lock:
            if session != self._number:
                return
            peers, self._peers, self._number, self._sending = self._peers, {}, 0, []
        for peer in peers.values():
            peer.close()

    def _greeted(
        self, shard: int, address: Address, port: int, greeting: Greeting, way: Way, opening: list[Connection]
    ) -> Connection:
        """A connection that the ps has accepted, which is added to those that are being opened."""
        try:
            connection = self._connected(address, port, opening)
            send_text(connection, greeting.model_copy(update={"carries": way}))
            answer = receive_text(connection, Answer)
        except OSError as error:
            raise UnreachableError(f"ps {shard} accepts no connection at {address.host}:{port}: {error}") from error
        if answer.refusal:
            raise LostPeerError(f"ps {shard} refuses this worker: {answer.refusal}")
        connection.set_timeout(SILENT_SECS)
        return connection

    def _peer(self, shard: int, replies: Connection, pushes: Connection) -> Peer:
        try:
            return Peer(shard, replies, pushes, self._messages[shard])
        except OSError as error:
            raise LostConnectionError(f"ps {shard} has ended a new connection: {error}") from error

    def _connected(self, address: Address, port: int, opening: list[Connection]) -> Connection:
        beside = self._unix_sockets and address.is_loopback
        sock = connected_beside(port, CONNECT_SECS) if beside else None
        if sock is None:
            sock = socket.create_connection((address.host.strip("[]"), port), CONNECT_SECS)
        try:
            encrypted = None
            if self._identity is not None and not address.is_loopback:
                encrypted = EncryptedSocket(sock, client_context(self._identity), self._role)
            connection = Connection(sock, encrypted)
        except BaseException:
            sock.close()
            raise
        with self._lock:
            opening.append(connection)
            if self._opening is not opening:
                connection.close()
        return connection
