"""Runs in a container that was put on a fleet's network: tries every way in, and prints what it could do as JSON.

`python compose_stranger.py FOLDER RUN HOST…`: FOLDER has a certificate, RUN is what the fleet trains, each HOST is one
of its containers, a ps the first.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
from pathlib import Path

import psfleet
from psfleet.addresses import DATA_PORT, LOADER_PORTS, LOCAL_PORTS, Address, local_address, run_address
from psfleet.control.client import PsClient
from psfleet.errors import PsfleetError
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.tls import EncryptedSocket
from psfleet.manifests.container import EXCHANGE_PORT, TUNNEL_PORT
from psfleet.service.process_environment import prepare_tensorflow
from psfleet.tls.identity import Identity

SECS = 5.0
BATCHES = Address("any", DATA_PORT).batches
"""The second port of a loader."""
PORTS = (DATA_PORT, BATCHES.port, *LOADER_PORTS[:4], *(ports[at] for ports in LOCAL_PORTS.values() for at in range(3)))
"""Where TensorFlow may listen, with TLS or without; workers of runs have ports of their own."""
GREETING = Greeting(
    version=psfleet.__version__, run="run", generation=-1, worker=0, incarnation=0, session="", carries="replies"
)
"""Of a generation that no ps trains: it is answered, and disturbs no worker."""


def main(others: Path, run: str, hosts: list[str]) -> None:
    """Prints what is open."""
    ps = Address(hosts[0], DATA_PORT)
    # The second port of a loader is that of a ps for exchanges.
    own = (port for port in dict.fromkeys(PORTS) if port != EXCHANGE_PORT)
    ports = (*own, *(run_address(run, worker).port for worker in range(3)))
    found = {
        "tensorflow_ports": [f"{host}:{port}" for host in hosts for port in ports if is_open(host, port)],
        "control": calls_control(ps, run, None),
        "control_with_other_certificate": calls_control(ps, run, Identity(others)),
        "tunnels": tunnels(hosts, None),
        "tunnels_with_other_certificate": tunnels(hosts, others),
        "exchanges": exchanges(hosts, None),
        "exchanges_with_other_certificate": exchanges(hosts, others),
        "session": opens_session(ps),
    }
    print(json.dumps(found))


def is_open(host: str, port: int) -> bool:
    """Whether the port takes a connection."""
    try:
        with socket.create_connection((host, port), SECS):
            return True
    except OSError:
        return False


def calls_control(ps: Address, run: str, identity: Identity | None) -> bool:
    """Whether the control plane answers."""
    client = PsClient(ps, run, identity)
    try:
        client.describe()
    except PsfleetError:
        return False
    finally:
        client.close()
    return True


def tunnels(hosts: list[str], certificate: Path | None) -> list[str]:
    """The hosts whose tunnel is passed, and once more those of which the tunnel to batches is."""
    ports = (TUNNEL_PORT, BATCHES.tunnel_port)
    return [host for port in ports for host in hosts if passes_tunnel(host, port, certificate)]


def passes_tunnel(host: str, port: int, certificate: Path | None) -> bool:
    """Whether the far side of the tunnel, TensorFlow's gRPC server, sends a byte to a client with this certificate.

    It speaks first (the SETTINGS of HTTP/2), once a client has sent its own first line.
    """
    try:
        with (
            socket.create_connection((host, port), SECS) as plain,
            client_context(certificate).wrap_socket(plain) as secured,
        ):
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            return bool(secured.recv(1))
    except OSError:
        return False


def client_context(certificate: Path | None) -> ssl.SSLContext:
    """For TLS with a peer of any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")
    return context


def exchanges(hosts: list[str], certificate: Path | None) -> list[str]:
    """The hosts that answer a greeting at the port for exchanges; without a certificate, with TLS or without."""
    contexts = [client_context(certificate), *([None] if certificate is None else [])]
    return [host for host in hosts if any(answers_greeting(host, context) for context in contexts)]


def answers_greeting(host: str, context: ssl.SSLContext | None) -> bool:
    """Whether the port for exchanges says why it refuses a session, which it says to workers only."""
    try:
        with socket.create_connection((host, EXCHANGE_PORT), SECS) as plain:
            encrypted = None if context is None else EncryptedSocket(plain, context, "ps")
            connection = Connection(plain, encrypted)
            send_text(connection, GREETING)
            return bool(receive_text(connection, Answer).refusal)
    except OSError:
        return False


def opens_session(ps: Address) -> bool:
    """Whether TensorFlow on the ps computes something for a stranger, who could then run any code there."""
    prepare_tensorflow()
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=int(SECS * 1000))
    for port in (ps.port, local_address("ps", 0).port):
        try:
            with tf.Graph().as_default(), tf.compat.v1.Session(f"grpc://{ps.host}:{port}", config=config) as session:
                if session.run(tf.constant(40) + 2) == 42:
                    return True
        except tf.errors.OpError:
            continue
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
