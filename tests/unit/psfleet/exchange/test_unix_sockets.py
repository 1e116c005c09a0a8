"""Processes of one machine and user exchange by Unix sockets, and by TCP where these are missing or another user's."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.exchange_server import WAIT_SECS, Ps, connected, greeted, served, session

from psfleet.addresses import LOOPBACK, Address
from psfleet.exchange import server, unix_sockets
from psfleet.exchange.connection import Connection
from psfleet.exchange.server import exchanging
from psfleet.exchange.unix_sockets import connected_beside, listening_beside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")

AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(30)
    sock.connect(b"\\0psfleet-exchange-" + sys.argv[1].encode())
    print(sock.recv(1) == b"")
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


@contextmanager
def of_another_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Context manager in which the processes of this user are those of another one."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: -1)
        yield


def beside(port: int) -> Connection:
    sock = connected_beside(port, WAIT_SECS)
    assert sock is not None
    return Connection(sock)


KINDS = {"TCP": connected, "Unix": lambda port: closing(beside(port))}


@pytest.mark.parametrize("of_replies", KINDS)
@pytest.mark.parametrize("of_pushes", KINDS)
def test_each_connection_of_a_session_can_be_of_each_kind(of_replies: str, of_pushes: str) -> None:
    with served(Ps()) as port, KINDS[of_replies](port) as replies, KINDS[of_pushes](port) as pushes:
        assert greeted(replies) == ""
        assert greeted(pushes, carries="pushes") == ""
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"


def test_nobody_listens_after_the_end() -> None:
    with served(Ps()) as port, closing(beside(port)):
        pass
    assert connected_beside(port, WAIT_SECS) is None


def test_a_ps_on_a_network_has_none() -> None:
    with (
        exchanging(Address("127.0.0.2", 1), None, Ps().refusal, Ps().serve) as port,
        socket.create_connection(("127.0.0.2", port), WAIT_SECS),
    ):
        assert connected_beside(port, WAIT_SECS) is None


def test_a_name_that_is_taken_leaves_the_port(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((LOOPBACK, 0)) as reserved:
        port = reserved.getsockname()[1]
        first = listening_beside(port)
        assert first is not None
        with first:
            assert listening_beside(port) is None
    assert f"port {port} has no Unix socket beside it, workers use TCP" in caplog.text


def test_where_there_are_no_abstract_names_the_port_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with served(Ps()) as port, session(port) as (pushes, replies):
        assert connected_beside(port, WAIT_SECS) is None
        pushes.send([b"x"])
        assert replies.receive(1) == b"x"
        monkeypatch.setattr(sys, "platform", "linux")
        assert connected_beside(port, WAIT_SECS) is None, "nobody listens"


def test_a_worker_does_not_use_the_socket_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process can take the name before the ps."""
    with served(Ps()) as port, of_another_user(monkeypatch):
        assert connected_beside(port, WAIT_SECS) is None


def test_a_user_that_a_namespace_does_not_know_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "overflowuid"
    own.write_text(f"{os.geteuid()}\n")
    monkeypatch.setattr(unix_sockets, "OVERFLOW_USER", own)
    with served(Ps()) as port:
        assert connected_beside(port, WAIT_SECS) is None


def test_where_unix_sockets_are_forbidden_the_port_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with RestrictAddressFamilies of systemd."""
    real = socket.socket

    def only_tcp(family: int = socket.AF_INET, *args: int, **kwargs: int) -> socket.socket:
        if family == socket.AF_UNIX:
            raise OSError(errno.EAFNOSUPPORT, "address family not supported")
        return real(family, *args, **kwargs)

    monkeypatch.setattr(socket, "socket", only_tcp)
    port = socket.create_server((LOOPBACK, 0))
    with port:
        assert listening_beside(port.getsockname()[1]) is None
        assert connected_beside(port.getsockname()[1], WAIT_SECS) is None


@needs_root
def test_a_ps_closes_the_connection_of_another_user() -> None:
    ps = Ps()
    with served(ps) as port:
        command = [sys.executable, "-c", AS_NOBODY, str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECS, check=True)
        assert done.stdout == "True\n"
        with closing(beside(port)) as replies:
            assert greeted(replies) == "", "it accepts those of its own user"


def test_strangers_at_the_port_do_not_keep_processes_of_the_user_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_GREETINGS", 2)
    with served(Ps()) as port:
        strangers = [socket.create_connection((LOOPBACK, port), WAIT_SECS) for _ in range(4)]
        with closing(beside(port)) as replies, closing(beside(port)) as pushes:
            assert greeted(replies) == ""
            assert greeted(pushes, carries="pushes") == ""
        for each in strangers:
            each.close()


def test_a_frozen_process_is_no_end_of_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not accepted a connection yet lets the worker connect, and is found by its silence."""
    monkeypatch.setattr(unix_sockets, "BACKLOG", 0)
    with socket.create_server((LOOPBACK, 0)) as reserved:
        port = reserved.getsockname()[1]
        listener = listening_beside(port)
        assert listener is not None
        with listener, closing(beside(port)) as connection:
            connection.set_timeout(0.05)
            with pytest.raises(TimeoutError):
                connection.receive(1)
            assert connected_beside(port, 0.05) is None, "there is no place for it: TCP is tried"
