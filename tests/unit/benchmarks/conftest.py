"""For tests of benchmarks: connections that end with the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchmarks.array_links import Link


@pytest.fixture
def closed_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the connections of a test."""
    made: list[Link] = []
    init = Link.__init__

    def kept(self: Link, connection: socket.socket) -> None:
        made.append(self)
        init(self, connection)

    monkeypatch.setattr(Link, "__init__", kept)
    yield
    for link in made:
        link.close()
