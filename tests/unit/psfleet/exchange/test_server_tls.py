"""With TLS a ps exchanges with workers of its own authority only, and a worker with a ps only."""

from __future__ import annotations

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.exchange_server import LOST, WAIT_SECS, Ps, connected, greeted, served, session

from psfleet.addresses import LOOPBACK, Address
from psfleet.exchange import server
from psfleet.exchange.connection import SMALL_BYTES, Connection
from psfleet.exchange.low_water import MIN_BYTES
from psfleet.exchange.messages import Greeting
from psfleet.exchange.server import exchanging
from psfleet.exchange.tls import CHUNK_BYTES, EncryptedSocket, client_context, server_context
from psfleet.tls import certificates
from psfleet.tls.identity import Identity


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls") / "certificates"
    certificates.make(made)
    return made


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_greeting_that_comes_byte_by_byte_is_not_awaited(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    """The time is that of the whole greeting, and of the handshake before it."""
    monkeypatch.setattr(server, "GREETING_SECS", 0.5)
    hello = b"\x16\x03\x01\x02\x00" if is_encrypted else (1000).to_bytes(4, "little")

    def send_slowly(connection: Connection) -> None:
        for byte in hello + bytes(100):
            connection.send([bytes([byte])])
            threading.Event().wait(0.1)

    identity = Identity(folder / "ps") if is_encrypted else None
    with served(Ps(), identity) as port, connected(port) as connection, pytest.raises(LOST):
        send_slowly(connection)


def test_with_tls_a_worker_exchanges_encrypted(folder: Path) -> None:
    ps = Ps()
    context = client_context(Identity(folder / "worker"))
    with served(ps, Identity(folder / "ps")) as port, session(port, context) as (pushes, replies):
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"


def test_with_tls_arrays_of_all_sizes_arrive(folder: Path) -> None:
    """Around the sizes of records, of what is sent by one call, and of what is joined."""
    sizes = [
        1,
        16383,
        16384,
        16385,
        SMALL_BYTES - 1,
        SMALL_BYTES,
        CHUNK_BYTES - 1,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        5_000_000,
    ]
    sent = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    received: list[np.ndarray] = []
    is_over = threading.Event()

    def serve(greeting: Greeting, pushes: Connection, replies: Connection) -> None:
        del greeting
        for each in sent:
            received.append(np.empty_like(each))
            pushes.receive_into(received[-1])
        replies.send(received)
        is_over.wait(WAIT_SECS)

    ps = Ps()
    context = client_context(Identity(folder / "worker"))
    with (
        exchanging(Address(LOOPBACK, 1), Identity(folder / "ps"), ps.refusal, serve) as port,
        session(port, context) as (pushes, replies),
    ):
        pushes.send(sent)
        for each in sent:
            back = np.empty_like(each)
            replies.receive_into(back)
            assert np.array_equal(each, back)
        is_over.set()
    assert all(np.array_equal(one, other) for one, other in zip(sent, received, strict=True))


def test_no_more_is_awaited_than_is_on_its_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived of a record is in OpenSSL; to wait for it again would be to wait forever."""
    contents = [bytes(47 * 16384), bytes(1_000_001)]
    first, second = socket.socketpair()
    with first, second, ThreadPoolExecutor(1) as pool:
        for each in (first, second):
            each.settimeout(WAIT_SECS)
        accepted = pool.submit(EncryptedSocket, second, server_context(Identity(folder / "ps")))
        sender = EncryptedSocket(first, client_context(Identity(folder / "worker")), "ps")
        receiver, num_awaited = accepted.result(WAIT_SECS), []
        sent = 0

        def receive(num_left: int, into: list[memoryview]) -> int:
            nonlocal sent
            assert num_left <= len(wire) - sent
            num_awaited.append(num_left)
            # Ends within a record.
            piece = wire[sent : sent + 99_991]
            sent += len(piece)
            into[0][: len(piece)] = piece
            return len(piece)

        monkeypatch.setattr(receiver._low_water, "receive", receive)
        for content in contents:
            at = 0
            while at < len(content):
                at += sender._tls.write(content[at : at + CHUNK_BYTES])
            wire, sent = sender._outgoing.read(), 0
            receiver.recvall_into(memoryview(bytearray(len(content))))
    assert max(num_awaited) >= MIN_BYTES


@pytest.mark.parametrize("role", ["ps", "loader", "client"])
def test_with_tls_only_a_worker_is_served(folder: Path, role: str) -> None:
    ps = Ps()
    context = client_context(Identity(folder / role))
    with served(ps, Identity(folder / "ps")) as port, pytest.raises(LOST), session(port, context):
        pass
    assert ps.num_sessions == 0


def test_with_tls_plain_connections_and_other_authorities_are_refused(folder: Path, tmp_path: Path) -> None:
    ps = Ps()
    certificates.make(tmp_path / "others")
    others = client_context(Identity(tmp_path / "others" / "worker"))
    with served(ps, Identity(folder / "ps")) as port:
        with connected(port) as plain, pytest.raises(LOST):
            greeted(plain)
        with pytest.raises(LOST), session(port, others):
            pass
    assert ps.num_sessions == 0


def test_with_tls_versions_before_1_3_are_refused(folder: Path) -> None:
    context = client_context(Identity(folder / "worker"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with served(Ps(), Identity(folder / "ps")) as port, pytest.raises(LOST), session(port, context):
        pass


def test_with_tls_a_worker_gives_its_gradient_to_a_ps_only(folder: Path) -> None:
    context = client_context(Identity(folder / "worker"))
    with (
        served(Ps(), Identity(folder / "loader")) as port,
        pytest.raises(ssl.SSLCertVerificationError),
        connected(port, context),
    ):
        pass
