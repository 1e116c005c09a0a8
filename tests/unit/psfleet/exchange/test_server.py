"""A ps accepts the two connections of a worker that it knows, with TLS only from a worker, and nothing else."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

import psfleet
from psfleet.addresses import LOOPBACK, Address
from psfleet.errors import LostPeerError
from psfleet.exchange import server
from psfleet.exchange.connection import SMALL_BYTES, Connection
from psfleet.exchange.messages import Answer, Greeting, receive_text, send_text
from psfleet.exchange.server import exchanging
from psfleet.exchange.tls import CHUNK_BYTES, EncryptedSocket, client_context
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tls import certificates
from psfleet.tls.identity import Identity

WAIT_SECS = 30.0
LOST = (ConnectionError, ssl.SSLError)
GREETING = Greeting(
    version=psfleet.__version__, run="run", generation=1, worker=0, incarnation=1, session="s", carries="replies"
)


class Ps:
    """A ps that sends back each byte, and counts its sessions."""

    def __init__(self) -> None:
        self.num_sessions = 0
        self.refused = ""

    def refusal(self, greeting: Greeting) -> str:
        del greeting
        return self.refused

    def serve(self, greeting: Greeting, pushes: Connection, replies: Connection) -> None:
        del greeting
        self.num_sessions += 1
        while True:
            replies.send([pushes.receive(1)])


@contextmanager
def served(ps: Ps, identity: Identity | None = None) -> Iterator[int]:
    address = Address(LOOPBACK, 1)
    with exchanging(address, identity, ps.refusal, ps.serve) as port:
        yield port


@contextmanager
def connected(port: int, context: ssl.SSLContext | None = None, name: str = "ps") -> Iterator[Connection]:
    sock = socket.create_connection((LOOPBACK, port), WAIT_SECS)
    with closing(sock):
        encrypted = None if context is None else EncryptedSocket(sock, context, name)
        connection = Connection(sock, encrypted)
        yield connection
        connection.close()


def greeted(connection: Connection, greeting: Greeting = GREETING, **changes: object) -> str:
    send_text(connection, greeting.model_copy(update=changes))
    return receive_text(connection, Answer).refusal


@contextmanager
def session(port: int, context: ssl.SSLContext | None = None, session: str = "s") -> Iterator[tuple[Connection, ...]]:
    """The connections of pushes and of replies."""
    with connected(port, context) as replies, connected(port, context) as pushes:
        assert greeted(replies, session=session) == ""
        assert greeted(pushes, session=session, carries="pushes") == ""
        yield pushes, replies


def test_a_session_has_a_connection_for_each_direction() -> None:
    ps = Ps()
    with served(ps) as port, session(port) as (pushes, replies), session(port, session="t") as (others, other_replies):
        others.send([b"y"])
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"
        assert other_replies.receive(1) == b"y"
    assert ps.num_sessions == 2


def test_a_worker_that_the_ps_does_not_know_is_told_why() -> None:
    ps = Ps()
    ps.refused = "no such generation"
    with served(ps) as port, connected(port) as connection:
        assert greeted(connection) == "no such generation"
        with pytest.raises(LOST):
            connection.receive(1)


def test_a_worker_of_another_version_is_told_why() -> None:
    with served(Ps()) as port, connected(port) as connection:
        assert greeted(connection, version="0.0.1") == f"the worker has psfleet 0.0.1, expected {psfleet.__version__}"


@pytest.mark.parametrize(
    "changes", [{"session": "other"}, {"worker": 1}, {"incarnation": 2}, {"run": "other"}, {"generation": 2}]
)
def test_pushes_without_replies_of_the_same_session_are_refused(changes: dict[str, object]) -> None:
    ps = Ps()
    with served(ps) as port, connected(port) as replies, connected(port) as pushes:
        assert greeted(replies) == ""
        with pytest.raises(LOST):
            greeted(pushes, carries="pushes", **changes)
    assert ps.num_sessions == 0


def test_a_second_connection_of_replies_is_refused() -> None:
    with served(Ps()) as port, connected(port) as replies, connected(port) as second:
        assert greeted(replies) == ""
        with pytest.raises(LOST):
            greeted(second)


def test_replies_whose_pushes_never_come_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_SECS", 0.2)
    with served(Ps()) as port, connected(port) as replies:
        assert greeted(replies) == ""
        with pytest.raises(LOST):
            replies.receive(1)


def test_strangers_that_say_nothing_do_not_keep_workers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_GREETINGS", 8)
    monkeypatch.setattr(server, "GREETING_SECS", 1.0)
    with ExitStack() as strangers, served(Ps()) as port:
        for _ in range(20):
            strangers.enter_context(connected(port))

        def is_served() -> bool:
            try:
                with session(port, session=str(threading.get_ident())) as (pushes, replies):
                    pushes.send([b"x"])
                    return replies.receive(1) == b"x"
            except OSError:
                return False

        wait_until(is_served, WAIT_SECS, "a session after the strangers' time is over", poll_secs=0.1)


def test_a_ps_accepts_connections_again_after_it_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with too many open files cannot accept any."""
    ps, errors = Ps(), iter([OSError(24, "too many open files")] * 3)
    real = socket.socket.accept

    def accept(listener: socket.socket) -> object:
        if (error := next(errors, None)) is not None:
            raise error
        return real(listener)

    monkeypatch.setattr(server, "RETRY_SECS", 0.05)
    monkeypatch.setattr(socket.socket, "accept", accept)
    with served(ps) as port, session(port) as (pushes, replies):
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"
    assert next(errors, None) is None, "it has failed"


def test_a_ps_on_loopback_listens_there_alone() -> None:
    with served(Ps()) as port, pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", port)):
        pass
    with served(Ps()) as port, socket.create_server(("127.0.0.2", port)):
        pass


def test_a_port_that_is_in_use_is_named() -> None:
    [free] = free_addresses(1)
    address = Address("ps-0", free.port - 3)
    with (
        socket.create_server(("", address.exchange_port)),
        pytest.raises(LostPeerError, match=f"port {address.exchange_port} of ps-0 for exchanges is in use"),
        exchanging(address, None, Ps().refusal, Ps().serve),
    ):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls") / "certificates"
    certificates.make(made)
    return made


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


def test_with_tls_a_worker_gives_its_gradient_to_a_ps_only(folder: Path) -> None:
    context = client_context(Identity(folder / "worker"))
    with (
        served(Ps(), Identity(folder / "loader")) as port,
        pytest.raises(ssl.SSLCertVerificationError),
        connected(port, context),
    ):
        pass
