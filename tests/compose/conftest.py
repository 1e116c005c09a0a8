"""What every test on a real Docker engine gets: the engine is there, and the images are those of this tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.images import bridge_address, build_images, require_engine
from support.s3_server import S3Server, s3_server, use


@pytest.fixture(scope="session", autouse=True)
def _images() -> None:
    """Both images, built once for all tests of a session."""
    require_engine()
    build_images()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server outside of the fleet's networks: on the engine's machine, at its address on the default bridge."""
    with s3_server(bridge_address()) as server:
        use(server, monkeypatch)
        server.make_bucket("fleet")
        yield server
