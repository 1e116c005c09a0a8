"""Listens for connections of aiohttp: with or without TLS, and as many as there may be."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from psfleet.inference.access import ClientAccess
from psfleet.inference.tensors import Status

HANDSHAKE_SECS = 10.0
"""Until a client has finished its TLS handshake."""
SHUTDOWN_SECS = 5.0
"""Until a client has finished the end of TLS."""
BACKLOG = 50
"""Connections that are accepted at once, of which each has an open file until it is closed."""
MAX_REFUSALS = 20
"""Connections with TLS that get an answer beyond the limit; further ones are closed before their handshake."""


class LimitedSite(web.BaseSite):
    """A `web.TCPSite` that answers connections beyond the limit with 503, and closes them.

    Args of the constructor:
        runner: Of the application; set up.
        host: Address.
        port: Of TCP.
        access: Has the certificate and the limit.
    """

    def __init__(self, runner: web.AppRunner, host: str, port: int, access: ClientAccess) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port
        self._access = access

    @property
    def name(self) -> str:
        """The URL."""
        return f"{'http' if self._access.certificate is None else 'https'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: The port is in use.
        """
        await super().start()
        certificate = self._access.certificate
        accept = self._protocol if certificate is None else _Handshakes(self._protocol, certificate.serving_context())
        self._server = await asyncio.get_running_loop().create_server(accept, self._host, self._port, backlog=BACKLOG)

    def _protocol(self, num_handshakes: int = 0) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "it is set up"
        if len(server.connections) + num_handshakes < self._access.max_connections:
            return server()
        return Refusal(f"{self._access.max_connections} connections are open, expected fewer")


class _Handshakes:
    """Makes the protocols of new connections, which have TLS: those whose handshake has not ended count, too.

    asyncio's own servers with TLS do not tell how many handshakes there are, each of which has an open file.

    Args of the constructor:
        protocol: Returns what a connection gets after its handshake, given the number of handshakes.
        context: Of TLS.
    """

    def __init__(self, protocol: Callable[[int], asyncio.Protocol], context: ssl.SSLContext) -> None:
        self._protocol = protocol
        self._context = context
        self._handshakes: set[asyncio.Task[None]] = set()
        self._refusals: set[Refusal] = set()

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a connection that was accepted."""
        return _Door(self._enter)

    def _enter(self, connection: socket.socket) -> None:
        protocol = self._protocol(len(self._handshakes) - len(self._refusals))
        if isinstance(protocol, Refusal):
            if len(self._refusals) >= MAX_REFUSALS:
                connection.close()
                return
            self._refusals.add(protocol)
        task = asyncio.get_running_loop().create_task(self._shake_hands(connection, protocol))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            with suppress(OSError):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_SECS,
                    ssl_shutdown_timeout=SHUTDOWN_SECS,
                )
                if isinstance(protocol, Refusal):
                    # Of a connection that breaks in its handshake, the protocol hears nothing.
                    async with asyncio.timeout(SHUTDOWN_SECS):
                        await protocol.ended.wait()
        finally:
            if isinstance(protocol, Refusal):
                self._refusals.discard(protocol)


class _Door(asyncio.Protocol):
    """Passes an accepted connection on, of which it has read nothing."""

    def __init__(self, enter: Callable[[socket.socket], None]) -> None:
        self._enter = enter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        try:
            connection = transport.get_extra_info("socket").dup()
        except OSError:
            # No file can be opened: the client may try again.
            return
        finally:
            transport.abort()
        self._enter(connection)


class Refusal(asyncio.Protocol):
    """Answers before any request, and closes the connection.

    Attributes:
        ended: Is set when it is closed.
    """

    def __init__(self, message: str) -> None:
        self.ended = asyncio.Event()
        self._message = message

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.ended.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.WriteTransport)
        body = json.dumps({"error": self._message}).encode()
        head = (
            f"HTTP/1.1 {Status.UNAVAILABLE.http} Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()
