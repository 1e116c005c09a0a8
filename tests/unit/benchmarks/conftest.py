"""For tests of benchmarks: connections that end with the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchmarks import array_links
from psfleet.exchange import connection


@pytest.fixture
def closed_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the connections of a test."""
    made: list[socket.socket] = []
    real = array_links.set_options

    def kept(sock: socket.socket) -> None:
        made.append(sock)
        real(sock)

    # Each end begins with this.
    monkeypatch.setattr(array_links, "set_options", kept)
    monkeypatch.setattr(connection, "set_options", kept)
    yield
    for sock in made:
        sock.close()
