"""Whether the sockets of this process listen on a port, and on which addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from psfleet.processes.ports import free_addresses
from psfleet.tls.listeners import is_on_loopback_alone, process_listens_on_loopback_alone


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bound(stack: ExitStack, host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = stack.enter_context(socket.socket(family))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own.bind((host, port))
    return own


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["127.0.0.1"], True),
        (["127.9.8.7"], True),
        (["::ffff:127.0.0.1"], True),
        (["::ffff:127.9.8.7"], True),
        (["0.0.0.0"], False),
        (["::"], False),
        (["127.0.0.1", "0.0.0.0"], False),
        ([], False),
    ],
    ids=str,
)
def test_a_port_is_on_loopback_alone_if_all_that_listen_are(stack: ExitStack, hosts: list[str], expected: bool) -> None:
    """As the tables of the kernel say it."""
    [free] = free_addresses(1)
    for host in hosts:
        bound(stack, host, free.port).listen()
    assert process_listens_on_loopback_alone(free.port) is expected
    assert is_on_loopback_alone(free.port) is expected


def test_what_does_not_listen_or_has_another_port_does_not_count(stack: ExitStack) -> None:
    [free] = free_addresses(1)
    own = bound(stack, "127.0.0.1", free.port)
    assert not process_listens_on_loopback_alone(free.port)
    own.listen()
    client = stack.enter_context(socket.create_connection(own.getsockname()))
    bound(stack, "0.0.0.0", free.control_port).listen()
    assert process_listens_on_loopback_alone(free.port)
    assert not process_listens_on_loopback_alone(client.getsockname()[1])
    own.close()
    assert not process_listens_on_loopback_alone(free.port)
