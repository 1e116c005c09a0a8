"""A control channel whose peer has gone without a word connects anew, wherever that peer is now."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psfleet.addresses import Address
from psfleet.control import credentials
from psfleet.control.server import serving
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

WAIT_SECS = 30.0
TIMES = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")


class Relay:
    """Connections to a server; `lose` has those that are open carry nothing any more, and closes none."""

    def __init__(self, stack: ExitStack, server: Address) -> None:
        self._stack, self._server = stack, server
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._is_lost = threading.Event()
        self.num_accepted = 0
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self) -> None:
        self._is_lost.set()
        self._is_lost = threading.Event()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                inner = self._stack.enter_context(self._listener.accept()[0])
                self.num_accepted += 1
                address = self._server.host, self._server.control_port
                outer = self._stack.enter_context(socket.create_connection(address))
                for pair in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._copy, args=(*pair, self._is_lost), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, is_lost: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not is_lost.is_set():
                    target.sendall(data)


@contextmanager
def relayed() -> Iterator[Relay]:
    """A server behind a relay."""
    [address] = free_addresses(1)
    with serving(address), ExitStack() as stack:
        relay = Relay(stack, address)
        yield relay
        relay._listener.shutdown(socket.SHUT_RDWR)


def test_a_peer_whose_address_is_gone_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [(name, 300 if name in TIMES else value) for name, value in credentials.CHANNEL_OPTIONS]
    with relayed() as relay:
        monkeypatch.setattr(credentials, "CHANNEL_OPTIONS", tuple(short))
        with credentials.channel(relay.target, "ps", None) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            def answers() -> bool:
                try:
                    stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                except grpc.RpcError:
                    return False
                return True

            wait_until(answers, WAIT_SECS, "an answer")
            relay.lose()
            wait_until(answers, WAIT_SECS, "an answer on another connection")
            assert relay.num_accepted >= 2
