"""Which ports of a ps answer: to a container of its network, and to an unprivileged user of the engine's machine.

A connection proves nothing: packets to an address that the machine has no route to go to its gateway, and some accept
every connection and speak HTTP/2. So each port is asked something that only a ps can answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from support.images import WORKER_IMAGE, docker, network

PORTS = [2222, 2223, 2224, 2226]
"""Of data, control, metrics and exchanges."""
NOBODY = "65534:65534"
SCRIPT = """
import http.client, json, socket, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
import grpc
import psfleet
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text

def call(port, method):
    with grpc.insecure_channel(f"{sys.argv[1]}:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        return channel.unary_unary(method)(b"", timeout=5)

def data():
    return b"/device:CPU:0" in call(2222, "/tensorflow.WorkerService/GetStatus")

def control():
    return call(2223, "/grpc.health.v1.Health/Check") == bytes([8, 1])

def metrics():
    return b"psfleet_" in urllib.request.urlopen(f"http://{sys.argv[1]}:2224/metrics", timeout=5).read()

def exchange():
    greeting = Greeting(
        version=psfleet.__version__, run="", generation=-1, worker=0, incarnation=0, session="", carries="replies"
    )
    with socket.create_connection((sys.argv[1], 2226), 5) as sock:
        connection = Connection(sock)
        send_text(connection, greeting)
        return "does not train generation -1" in receive_text(connection, Answer).refusal

def answers(ask):
    try:
        return ask()
    except (grpc.RpcError, OSError, http.client.HTTPException):
        return False

with ThreadPoolExecutor() as pool:
    asked = {2222: data, 2223: control, 2224: metrics, 2226: exchange}
    found = pool.map(answers, asked.values())
    print(json.dumps([port for port, does_answer in zip(asked, found) if does_answer]))
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
