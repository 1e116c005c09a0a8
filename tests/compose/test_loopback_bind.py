"""The library in the images that keeps TensorFlow's port on loopback (DESIGN 3.8)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from images import PS_IMAGE, Container, container, docker, network

from psfleet.cluster import DATA_PORT
from psfleet.errors import BadJobError
from psfleet.launch.container import CLOSED, CONTROL_PORT

START_SECS = 120.0
LIBRARY = CLOSED["LD_PRELOAD"]
BIND = """
import json, socket, sys
family, address, port = json.loads(sys.argv[1])
with socket.socket(getattr(socket, family)) as listener:
    listener.bind(address if family == "AF_UNIX" else (address, port))
    name = listener.getsockname()
    print(json.dumps(name if family == "AF_UNIX" else name[0]))
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
    print("open")
except ConnectionRefusedError:
    print("refused")
"""
SESSION = """
import tensorflow as tf
tf.compat.v1.disable_eager_execution()
with tf.compat.v1.Session("grpc://127.0.0.1:{port}") as session:
    print(session.run(tf.constant(41) + 1))
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Container]:
    """A container with the library, in which nothing listens."""
    told = {"LD_PRELOAD": LIBRARY, "PSFLEET_LOOPBACK_PORTS": "3000-3009"}
    with container(PS_IMAGE, "--entrypoint", "sleep", command=("600",), environment=told) as idle:
        yield idle


@pytest.mark.parametrize(
    ("family", "address", "port", "bound"),
    [
        ("AF_INET", "0.0.0.0", 3000, "127.0.0.1"),
        ("AF_INET", "0.0.0.0", 3009, "127.0.0.1"),
        ("AF_INET", "0.0.0.0", 2999, "0.0.0.0"),
        ("AF_INET", "0.0.0.0", 3010, "0.0.0.0"),
        ("AF_INET", "0.0.0.0", 0, "0.0.0.0"),
        ("AF_INET6", "::ffff:0.0.0.0", 3005, "::ffff:127.0.0.1"),
        ("AF_INET6", "::", 3005, "::ffff:127.0.0.1"),
        ("AF_INET6", "::", 3010, "::"),
        ("AF_UNIX", "/tmp/socket-3005", 0, "/tmp/socket-3005"),
    ],
)
def test_ports_in_the_range_get_the_loopback_address(
    bench: Container, family: str, address: str, port: int, bound: str
) -> None:
    done = bench.execute("python", "-c", BIND, json.dumps([family, address, port]))
    assert json.loads(done.stdout) == bound, done.stderr


@pytest.mark.parametrize("ports", ["", "3000", "3000-", "3000-3009x", "high-low", "3009-3000"])
def test_a_range_that_cannot_be_read_ends_the_process(ports: str) -> None:
    """Going on would open what was to be closed."""
    told = ("--env", f"LD_PRELOAD={LIBRARY}", "--env", f"PSFLEET_LOOPBACK_PORTS={ports}")
    command = ("--entrypoint", "python", *told, PS_IMAGE, "-c", BIND, json.dumps(["AF_INET", "0.0.0.0", 3000]))
    done = docker("run", "--rm", *command, check=False)
    assert done.returncode == BadJobError.exit_code
    assert f"PSFLEET_LOOPBACK_PORTS is '{ports}', expected LOW-HIGH" in done.stderr


@pytest.mark.parametrize("closed", [True, False], ids=["with the library", "without it"])
def test_tensorflows_port_answers_nobody_but_loopback(closed: bool) -> None:
    """The control port stays open, so the refusal is not the network's; without the library both are."""
    told = {"LD_PRELOAD": LIBRARY, "PSFLEET_LOOPBACK_PORTS": f"{DATA_PORT}-{DATA_PORT}"} if closed else {}
    with network("--internal") as net, container(PS_IMAGE, "--network", net, environment=told) as ps:
        ps.wait_for(lambda: ps.is_listening(CONTROL_PORT), START_SECS, "a ps that is ready")
        assert ps.is_listening(DATA_PORT)
        assert connect_from_outside(net, ps.name, CONTROL_PORT) == "open"
        assert connect_from_outside(net, ps.name, DATA_PORT) == ("refused" if closed else "open")
        session = ps.execute("python", "-c", SESSION.format(port=DATA_PORT))
        assert session.stdout.strip() == "42", session.stderr


def connect_from_outside(net: str, host: str, port: int) -> str:
    """What a container beside it finds at a port: open or refused."""
    command = ("--entrypoint", "python", "--network", net, PS_IMAGE, "-c", CONNECT, host, str(port))
    return docker("run", "--rm", *command).stdout.strip()
