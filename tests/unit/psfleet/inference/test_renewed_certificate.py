"""A front's certificate that is renewed while it serves: new connections have it, and a wrong one replaces nothing."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.inference_service import with_service

from psfleet.inference.access import ClientAccess
from psfleet.inference.grpc_server import serving_grpc
from psfleet.inference.rest import serving_rest
from psfleet.inference.server_certificate import ServerCertificate
from psfleet.tls.signing import new_authority, new_certificate, private_pem, public_pem


@pytest.mark.parametrize("name", ["localhost", None])
@pytest.mark.parametrize("protocol", [serving_rest, serving_grpc])
def test_new_connections_have_the_certificate_that_was_renewed(
    tmp_path: Path, protocol: Any, name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    files = ServerCertificate(tmp_path / "cert", tmp_path / "key")
    certificates, keys = zip(*(issued() for _ in range(3)), strict=True)
    files.chain.write_bytes(certificates[0])
    files.key.write_bytes(keys[0])

    async def use(port: int) -> list[int]:
        found = [certificates.index(await presented(port, name))]
        # One file is replaced after the other, and connections come in between.
        for file, content in ((files.chain, certificates[1]), (files.key, keys[1]), (files.chain, b"no certificate")):
            file.with_suffix(".new").write_bytes(content)
            file.with_suffix(".new").rename(file)
            found.append(certificates.index(await presented(port, name)))
        files.key.unlink()
        found.append(certificates.index(await presented(port, name)))
        files.key.write_bytes(keys[2])
        files.chain.write_bytes(certificates[2])
        return [*found, certificates.index(await presented(port, name))]

    assert with_service(use, protocol, ClientAccess(certificate=files)) == [0, 0, 1, 1, 1, 2]
    assert "the certificate was not replaced: --tls-cert" in caplog.text


def issued() -> tuple[bytes, bytes]:
    """A certificate of its own authority, and its key."""
    end = datetime.now(UTC) + timedelta(days=1)
    certificate, key = new_certificate("localhost", ["localhost"], new_authority("authority", end), end)
    return public_pem(certificate), private_pem(key)


async def presented(port: int, name: str | None) -> bytes:
    """The certificate that a client sees which names a server, or none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return public_pem(x509.load_der_x509_certificate(found))
