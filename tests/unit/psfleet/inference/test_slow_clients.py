"""Clients that send nothing, or a part of a request, keep no connection for ever, and fill no log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.inference_service import with_service

from psfleet.inference import grpc_server, rest
from psfleet.inference.grpc_server import serving_grpc
from psfleet.inference.rest import serving_rest

WAIT_SECS = 10.0
SHORT_SECS = 0.2
HEAD = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def received(sent: bytes, protocol: Any, end: bytes = b"") -> bytes:
    """What a client receives which sends some bytes and waits, until an end or until its connection is closed."""

    async def use(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(WAIT_SECS):
            found = await (reader.readuntil(end) if end else reader.read())
        writer.close()
        return found

    return bytes(with_service(use, protocol))


@pytest.mark.parametrize("sent", [b"", HEAD, b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD])
def test_a_connection_of_rest_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(rest, "IDLE_SECS", SHORT_SECS)
    assert received(sent, serving_rest).count(b"HTTP/1.1 ") == sent.count(b"live")


def test_a_body_that_does_not_arrive_is_waited_for_until_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "BODY_SECS", SHORT_SECS)
    found = received(HEAD + b"Content-Length: 100\r\n\r\n{", serving_rest, end=b"}")
    assert found.startswith(b"HTTP/1.1 408 "), found
    assert found.endswith(b'{"error": "the body has not arrived within 0.2 s"}')


@pytest.mark.parametrize("sent", [b"", PREFACE])
def test_a_connection_of_grpc_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(grpc_server, "HANDSHAKE_SECS", 1.0)
    monkeypatch.setattr(grpc_server, "IDLE_SECS", 1.0)
    received(sent, serving_grpc)


def test_requests_that_are_none_are_answered_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert received(HEAD + b"Content-Length: -1\r\n\r\n", serving_rest).startswith(b"HTTP/1.0 400 ")

        async def use(port: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
            await writer.drain()
            writer.transport.abort()

        with_service(use, serving_rest)
    assert not caplog.records, caplog.text
