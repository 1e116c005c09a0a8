"""Which ports of TensorFlow are named as blocked."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from psfleet.addresses import Address
from worker_service import data_ports
from worker_service.data_ports import blocked

HOST = "127.0.0.1"


def test_an_open_port_is_not_named() -> None:
    with socket.create_server((HOST, 0)) as listener:
        assert blocked([("ps 0", Address(HOST, listener.getsockname()[1]))]) == ""


def test_a_port_that_refuses_is_named_beside_one_that_is_open() -> None:
    with socket.create_server((HOST, 0)) as listener, socket.socket() as closed:
        closed.bind((HOST, 0))
        address = Address(HOST, closed.getsockname()[1])
        found = blocked([("ps 0", Address(HOST, listener.getsockname()[1])), ("ps 1", address)])
    assert found == f"TensorFlow's port of ps 1 at {address.data} cannot be reached (Connection refused)"


def test_a_port_that_answers_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall that drops packets: the queue of connections is full."""
    monkeypatch.setattr(data_ports, "PROBE_SECS", 0.2)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        address = Address(HOST, listener.getsockname()[1])
        assert blocked([("ps 0", address)]).endswith(f"ps 0 at {address.data} cannot be reached (no answer in 0.2 s)")


def test_a_host_that_has_no_address_is_named() -> None:
    assert "ps 0 at no-such-host.invalid:2222 cannot be reached" in blocked(
        [("ps 0", Address("no-such-host.invalid", 2222))]
    )
