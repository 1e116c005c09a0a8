"""Listens for connections of aiohttp: with or without TLS, and as many as there may be."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from psfleet.inference.access import ClientAccess
from psfleet.inference.tensors import Status

HANDSHAKE_SECS = 10.0
"""Until a client has finished its TLS handshake."""


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
        self._server = await asyncio.get_running_loop().create_server(
            self._accepted,
            self._host,
            self._port,
            ssl=None if certificate is None else certificate.serving_context(),
            ssl_handshake_timeout=None if certificate is None else HANDSHAKE_SECS,
        )

    def _accepted(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "it is set up"
        if len(server.connections) < self._access.max_connections:
            return server()
        return _Refusal(f"{self._access.max_connections} connections are open, expected fewer")


class _Refusal(asyncio.Protocol):
    """Answers before any request, and closes the connection."""

    def __init__(self, message: str) -> None:
        self._message = message

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
