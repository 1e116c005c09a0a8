"""Which ports of a service answer: to a container of its network, and to an unprivileged user of the engine's machine.

A connection alone proves nothing: packets to an address that the machine has no route to go to its gateway, and on some
networks that accepts any connection. So each port is asked in its own protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from support.images import WORKER_IMAGE, docker, network

GRPC_PORTS, METRICS_PORT = (2222, 2223), 2224
"""Of data and control; of metrics."""
PORTS = [*GRPC_PORTS, METRICS_PORT]
NOBODY = "65534:65534"
SCRIPT = f"""
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2 = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + SETTINGS

def answers(port):
    is_grpc = port in {GRPC_PORTS}
    try:
        with socket.create_connection((sys.argv[1], port), 4) as connection:
            connection.sendall(HTTP2 if is_grpc else b"GET / HTTP/1.0\\r\\n\\r\\n")
            reply = connection.recv(9)
    except OSError:
        return False
    return reply[3:4] == SETTINGS[3:4] if is_grpc else reply.startswith(b"HTTP/")

with ThreadPoolExecutor() as pool:
    print(json.dumps([port for port, found in zip({PORTS}, pool.map(answers, {PORTS})) if found]))
"""


def answering_in(name: str, host: str) -> list[int]:
    """The ports of a host that answer a new container on the network of a name."""
    return _answering(host, "--network", name)


def answering_on_machine(host: str) -> list[int]:
    """The ports of a host that answer user nobody in the network namespace of the engine's machine."""
    return _answering(host, "--network", "host", "--user", NOBODY, "--cap-drop", "ALL")


@contextmanager
def on_ordinary_network(container: str) -> Iterator[str]:
    """Connects a container to an internal network with the engine's defaults for the block; its address there."""
    with network("--internal") as ordinary:
        docker("network", "connect", ordinary, container)
        try:
            template = f'{{{{(index .NetworkSettings.Networks "{ordinary}").IPAddress}}}}'
            yield docker("inspect", "--format", template, container).stdout.strip()
        finally:
            docker("network", "disconnect", "--force", ordinary, container)


def _answering(host: str, *options: str) -> list[int]:
    done = docker("run", "--rm", *options, "--entrypoint", "python", WORKER_IMAGE, "-c", SCRIPT, host)
    found: list[int] = json.loads(done.stdout)
    return found
