"""Tunnels of real stunnel processes into a worker: which certificates they accept."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program_samples import sample_job

from psfleet.job.update import Update
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from psfleet.tls import certificates
from psfleet.tls.data_plane import Tunnelled
from psfleet.tls.identity import CERTIFICATE, KEY, Identity
from psfleet.tls.tunnel import PROGRAM, Tunnels

SECS = 10.0
GREETING = b"TensorFlow"

pytestmark = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the fleet, and of another one."""
    made = tmp_path_factory.mktemp("certificates")
    for name in ("own", "other"):
        certificates.make(made / name)
    return made


@pytest.fixture(params=["between_graph", "in_graph"])
def tunnel(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, int]]:
    """The replication, and the port of the tunnel into worker 1, behind which a server greets."""
    job = sample_job().model_copy(update={"update": Update(replication=request.param)})
    [address] = free_addresses(1)
    # Of another host: this one shares loopback with no ps.
    at = {settings.ADDRESS: f"worker-1:{address.port}", settings.JOB: job.model_dump_json(), settings.PS: "ps-0:2222"}
    read = settings.read({**at, settings.RUN: f"run-{address.port}"})
    with Tunnels(Identity(folder / "own" / "worker")) as tunnels:
        plane = Tunnelled(read, "worker", 1, tunnels)
        with socket.create_server((plane.own.host, plane.own.port)) as server:
            threading.Thread(target=greet, args=(server,), daemon=True).start()
            yield request.param, address.tunnel_port
            server.shutdown(socket.SHUT_RDWR)


def greet(server: socket.socket) -> None:
    """Greets every connection until the server ends."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(GREETING)


def is_greeted(port: int, certificate: Path | None) -> bool:
    """Whether a client with a certificate reaches the server behind the tunnel."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate / CERTIFICATE, certificate / KEY)
    try:
        with socket.create_connection(("127.0.0.1", port), SECS) as plain, context.wrap_socket(plain) as secured:
            return secured.recv(len(GREETING)) == GREETING
    except OSError:
        return False


def test_a_worker_lets_in_other_workers_only_with_in_graph_replication_and_no_stranger_ever(
    tunnel: tuple[str, int], folder: Path
) -> None:
    replication, port = tunnel
    let_in = {
        name: is_greeted(port, None if name == "nothing" else folder / name)
        for name in ("own/ps", "own/worker", "own/client", "other/ps", "other/worker", "nothing")
    }
    expected = {"own/ps", "own/worker"} if replication == "in_graph" else {"own/ps"}
    assert {name for name, is_in in let_in.items() if is_in} == expected
