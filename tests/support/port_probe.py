"""Which of a service's ports a container can open, and a container that publishes them all, as no fleet does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from support.images import WORKER_IMAGE, container, docker

PORTS = ("2222", "2223", "2224")
"""Of data, control and metrics."""
LISTEN_SECS = 20.0
CONNECT_SCRIPT = """
import socket, sys
host, ports = sys.argv[1], sys.argv[2:]
for port in ports:
    try:
        socket.create_connection((host, int(port)), 3).close()
        print(port, "open")
    except OSError:
        print(port, "closed")
"""
LISTEN_SCRIPT = """
import signal, socket, sys
listening = [socket.create_server(("", int(port))) for port in sys.argv[1:]]
signal.pause()
"""


def opened(network: str, host: str) -> str:
    """A line for each port, such as `2222 open`, as a new container on a network sees them at a host."""
    return docker(
        "run", "--rm", "--network", network, "--entrypoint", "python", WORKER_IMAGE, "-c", CONNECT_SCRIPT, host, *PORTS
    ).stdout


def opened_on_machine() -> str:
    """The same for the ports of the engine's machine: those that are published on all its addresses are open."""
    return opened("host", "127.0.0.1")


@contextmanager
def published() -> Iterator[None]:
    """Runs a container that listens on the ports, and has them published on all addresses of the machine."""
    options = [part for port in PORTS for part in ("--publish", f"{port}:{port}")]
    with container(WORKER_IMAGE, *options, "--entrypoint", "python", command=("-c", LISTEN_SCRIPT, *PORTS)) as listener:
        listener.wait_for(
            lambda: all(listener.is_listening(int(port)) for port in PORTS), LISTEN_SECS, "a container that listens"
        )
        yield
