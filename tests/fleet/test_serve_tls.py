"""A front with TLS and a token on all interfaces, and what the command says of one without TLS."""

from __future__ import annotations

import json
import signal
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
from support import commands
from support.exported_run import BIAS, KERNEL, X, trained
from support.served import READY_SECS, query

from psfleet.addresses import Address
from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tls.signing import new_authority, new_certificate, private_pem, public_pem

TOKEN = "a-token-of-many-characters"


@contextmanager
def serving_everyone(folder: Path, *options: str) -> Iterator[tuple[Address, str]]:
    """Serves a run on all interfaces; the address, and what the command said until it was ready."""
    trained(folder)
    (folder / "token").write_text(TOKEN)
    (address,) = free_addresses(1)
    screen = folder / "screen"
    screen.touch()
    process = commands.started(
        "psfleet", "serve", ".", "--host", "0.0.0.0", "--token-file", "token", "--rest-port", str(address.port),
        "--grpc-port", str(address.control_port), *options, folder=folder, out=screen, err=screen,
    )  # fmt: skip
    try:
        wait_until(lambda: "is ready" in screen.read_text() or process.poll() is not None, READY_SECS, "the service")
        yield address, screen.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        wait_until(process.poll, READY_SECS, "the end of the service", done=lambda code: code is not None)


@pytest.mark.extended
def test_clients_of_rest_and_grpc_verify_the_front_and_send_the_token(tmp_path: Path) -> None:
    end = datetime.now(UTC) + timedelta(days=1)
    authority = new_authority("authority", end)
    certificate, key = new_certificate("front", ["localhost"], authority, end)
    (tmp_path / "front.pem").write_bytes(public_pem(certificate))
    (tmp_path / "front.key").write_bytes(private_pem(key))
    trusted = public_pem(authority[0])
    with serving_everyone(tmp_path, "--tls-cert", "front.pem", "--tls-key", "front.key") as (address, said):
        assert f"net is ready: https://0.0.0.0:{address.port}/v2/models/net" in said
        assert "clear text" not in said
        url = f"https://localhost:{address.port}/v2/models/net/infer"
        request = urllib.request.Request(url, json.dumps(query(X)).encode(), {"Authorization": f"Bearer {TOKEN}"})
        context = ssl.create_default_context(cadata=trusted.decode())
        with urllib.request.urlopen(request, context=context, timeout=READY_SECS) as answer:
            (output,) = json.load(answer)["outputs"]
        np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), X @ KERNEL + BIAS, rtol=1e-6)
        credentials = grpc.ssl_channel_credentials(trusted)
        with grpc.secure_channel(f"localhost:{address.control_port}", credentials) as channel:
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            found = GRPCInferenceServiceStub(channel).ModelMetadata(
                pb.ModelMetadataRequest(name="net"), metadata=metadata, timeout=READY_SECS
            )
        assert found.platform == "tensorflow_psfleet"


@pytest.mark.extended
def test_the_command_says_that_tokens_travel_in_clear_text(tmp_path: Path) -> None:
    with serving_everyone(tmp_path) as (address, said):
        assert "without --tls-cert, tokens and queries travel in clear text" in said.splitlines()
        assert f"net is ready: http://0.0.0.0:{address.port}/v2/models/net" in said
