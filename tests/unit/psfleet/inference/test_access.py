"""Who may use a front: tokens, TLS, and the number of connections."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientConnectorCertificateError, ClientSession
from cryptography.hazmat.primitives import serialization
from support.inference_service import with_service

from psfleet.errors import UsageError
from psfleet.inference import limited_site
from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.access import ClientAccess, allow_connections, clear_text_warning, is_allowed, read_token
from psfleet.inference.grpc_server import serving_grpc
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.inference.rest import serving_rest
from psfleet.inference.server_certificate import ServerCertificate, server_certificate
from psfleet.tls.signing import Issued, new_authority, new_certificate, private_pem, public_pem

TOKEN = "a-token-of-many-characters"
NAME = "localhost"
WAIT_SECS = 10.0


def test_other_addresses_than_loopback_need_a_token(tmp_path: Any) -> None:
    file = tmp_path / "token"
    with pytest.raises(UsageError, match=r"--host 0\.0\.0\.0 is not one of loopback .*, expected --token-file, too"):
        read_token("0.0.0.0", None)
    assert read_token("localhost", None) == ""
    with pytest.raises(UsageError, match="No such file"):
        read_token("0.0.0.0", file)
    for text in ("short", "has blanks in its many characters", "ü" * 20, ""):
        file.write_text(text)
        with pytest.raises(UsageError, match="expected at least 16 ASCII characters"):
            read_token("127.0.0.1", file)
    file.write_text(f"{TOKEN}\n")
    assert read_token("0.0.0.0", file) == TOKEN
    assert is_allowed(TOKEN, f"Bearer {TOKEN}")
    assert not is_allowed(TOKEN, "Bearer ")


def issued(folder: Path, name: str = NAME) -> tuple[ServerCertificate, Path, Issued]:
    """The certificate of a name, the file of its authority, and the certificate itself."""
    end = datetime.now(UTC) + timedelta(days=1)
    authority = new_authority("authority", end)
    found = new_certificate(name, [name], authority, end)
    for file, content in (
        ("ca", public_pem(authority[0])),
        ("cert", public_pem(found[0])),
        ("key", private_pem(found[1])),
    ):
        (folder / file).write_bytes(content)
    return ServerCertificate(folder / "cert", folder / "key"), folder / "ca", found


def test_a_client_of_rest_verifies_the_certificate(tmp_path: Path) -> None:
    certificate, authority, _ = issued(tmp_path)

    async def use(port: int) -> int:
        url = f"https://{NAME}:{port}/v2/health/live"
        context = ssl.create_default_context(cafile=authority)
        async with ClientSession() as client:
            with pytest.raises(ClientConnectorCertificateError):
                await client.get(url)
            async with client.get(url, ssl=context) as answer:
                return answer.status

    assert with_service(use, serving_rest, ClientAccess(certificate=certificate)) == 200


def test_a_client_of_grpc_verifies_the_certificate(tmp_path: Path) -> None:
    certificate, authority, _ = issued(tmp_path)

    async def live(port: int, authorities: bytes | None) -> bool:
        credentials = grpc.ssl_channel_credentials(authorities)
        async with grpc.aio.secure_channel(f"{NAME}:{port}", credentials) as channel:
            answer = await GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=WAIT_SECS)
            return bool(answer.live)

    async def use(port: int) -> bool:
        with pytest.raises(grpc.RpcError) as caught:
            await live(port, None)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        return await live(port, authority.read_bytes())

    assert with_service(use, serving_grpc, ClientAccess(certificate=certificate))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificate, _, (_, key) = issued(tmp_path)
    chain, key_file = str(certificate.chain), str(certificate.key)
    assert server_certificate(None, None) is None
    assert server_certificate(chain, key_file) == certificate
    for given, problem in (
        ((chain, None), "--tls-cert is given without --tls-key, expected both or neither"),
        ((None, key_file), "--tls-key is given without --tls-cert"),
        ((str(tmp_path / "none"), key_file), "No such file or directory, expected a certificate in PEM and its key"),
        ((key_file, chain), "expected a certificate in PEM"),
    ):
        with pytest.raises(UsageError, match=problem):
            server_certificate(*given)
    other = new_authority("other", datetime.now(UTC) + timedelta(days=1))
    certificate.key.write_bytes(private_pem(other[1]))
    with pytest.raises(UsageError, match="key values mismatch"):
        server_certificate(chain, key_file)
    encryption = serialization.BestAvailableEncryption(b"password")
    format_ = serialization.PrivateFormat.PKCS8
    certificate.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, format_, encryption))
    with pytest.raises(UsageError, match="expected a certificate in PEM and its key without a password"):
        server_certificate(chain, key_file)


def test_tokens_and_queries_that_others_may_read_have_a_warning() -> None:
    warning = "without --tls-cert, tokens and queries travel in clear text"
    assert clear_text_warning("0.0.0.0", has_tls=False) == warning
    assert clear_text_warning("0.0.0.0", has_tls=True) == ""
    assert clear_text_warning("127.0.0.1", has_tls=False) == ""


def test_connections_of_rest_beyond_the_limit_are_refused_until_others_end() -> None:
    async def use(port: int) -> list[tuple[int, str]]:
        async with connected(port) as first:
            async with connected(port) as second:
                answers = [await asked(*first), await asked(*second)]
                async with connected(port) as third:
                    answers.append(await asked(*third))
                    assert await third[0].read() == b"", "it is closed"
            async with asyncio.timeout(WAIT_SECS):
                while True:
                    async with connected(port) as next_one:
                        if (await asked(*next_one))[0] == 200:
                            return answers

    found = with_service(use, serving_rest, ClientAccess(max_connections=2))
    assert found == [(200, ""), (200, ""), (503, "2 connections are open, expected fewer")]


def test_handshakes_count_as_connections_and_further_ones_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_site, "MAX_REFUSALS", 1)
    certificate, authority, _ = issued(tmp_path)
    context = ssl.create_default_context(cafile=authority)

    async def use(port: int) -> None:
        async def live() -> tuple[int, str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
            found = await asked(reader, writer)
            writer.transport.abort()
            return found

        async with AsyncExitStack() as silent:
            for _ in range(3):
                # The third one would be refused after its handshake.
                await silent.enter_async_context(connected(port))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await live()
        async with asyncio.timeout(WAIT_SECS):
            while True:
                with suppress(ssl.SSLError, ConnectionError):
                    if (await live())[0] == 200:
                        break
        async with connected(port), connected(port):
            assert await live() == (503, "2 connections are open, expected fewer")

    with_service(use, serving_rest, ClientAccess(certificate=certificate, max_connections=2))


def test_the_limit_of_open_files_is_raised_for_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (256, 2000)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, found: raised.append(found))
    allow_connections(400)
    with pytest.raises(UsageError, match=r"--max-connections 1000 needs 2100 open files of the front, .* have 2000"):
        allow_connections(1000)
    limits = (256, resource.RLIM_INFINITY)
    allow_connections(1000)
    limits = (4000, 4000)
    allow_connections(400)
    assert raised == [(1400, 2000), (2600, resource.RLIM_INFINITY)]


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, str]:
    """Status and error of an answer."""
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = next(int(line.split(": ")[1]) for line in head.splitlines() if line.startswith("Content-Length"))
    content: dict[str, Any] = json.loads(await reader.readexactly(size))
    return int(head.split()[1]), str(content.get("error", ""))


def test_connections_of_grpc_beyond_the_limit_are_refused_until_others_end() -> None:
    async def use(port: int) -> grpc.StatusCode:
        # Otherwise the channels of a process to one address share a connection.
        own = (("grpc.use_local_subchannel_pool", 1),)
        first, second = (grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own) for _ in range(2))

        async def live(channel: Any, waits: bool) -> bool:
            call = GRPCInferenceServiceStub(channel).ServerLive
            return bool((await call(pb.ServerLiveRequest(), timeout=WAIT_SECS, wait_for_ready=waits)).live)

        assert await live(first, waits=True)
        with pytest.raises(grpc.RpcError) as caught:
            await live(second, waits=False)
        await first.close()
        assert await live(second, waits=True)
        await second.close()
        return caught.value.code()

    assert with_service(use, serving_grpc, ClientAccess(max_connections=1)) is grpc.StatusCode.UNAVAILABLE
