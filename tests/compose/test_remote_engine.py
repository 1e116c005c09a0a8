"""A fleet on an engine behind `tcp://`, as on another machine: its program is in an image."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.compose_fleet import fleet
from support.images import WORKER_IMAGE, built

ENGINE = "/var/run/docker.sock"
STEPS = 20

pytestmark = pytest.mark.timeout(600)


class _Connection(socketserver.BaseRequestHandler):
    """One connection, passed on to the engine's socket."""

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(ENGINE)
            back = threading.Thread(target=_pass_on, args=(engine, self.request))
            back.start()
            _pass_on(self.request, engine)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copies until the source ends, and ends the target's stream."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Forward(socketserver.ThreadingTCPServer):
    """The engine at a TCP port.

    Attributes:
        accepted: Number of connections.
    """

    daemon_threads = True
    accepted = 0

    @property
    def url(self) -> str:
        """As DOCKER_HOST names it."""
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Counts a connection, and starts its thread."""
        self.accepted += 1
        super().process_request(request, client_address)


@contextmanager
def forwarded() -> Iterator[_Forward]:
    """Forwards connections during the block."""
    with _Forward(("127.0.0.1", 0), _Connection) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def test_a_fleet_trains_on_an_engine_behind_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet(tmp_path / "job", 0.0, train={"steps": STEPS}) as seen:
        seen.hurry()
        (seen.folder / "Dockerfile").write_text(f"FROM {WORKER_IMAGE}\nCOPY . /program\n")
        with built(seen.folder) as image, forwarded() as engine, monkeypatch.context() as environment:
            environment.setenv("DOCKER_HOST", engine.url)
            seen.up("--set", "container.program=image", "--set", f"container.worker_image={image}")
            assert seen.end() == 0, seen.screen.read_text()
            assert engine.accepted, "the commands came this way"
            assert set(seen.left()) == {"volumes"}
            report = seen.report()
            seen.run("down", seen.name, "--results")
    assert (report.status, report.final_step) == ("done", STEPS)
