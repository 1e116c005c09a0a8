"""What every test on a real Docker engine gets: the engine is there, and the images are those of this tree."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.images import build_images, docker, require_engine
from support.s3_server import S3Server, s3_server, use


@pytest.fixture(scope="session", autouse=True)
def _images() -> None:
    """Both images, built once for all tests of a session."""
    require_engine()
    build_images()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server outside of the fleet's networks: on the engine's machine, at its address on the default bridge."""
    (bridge,) = json.loads(docker("network", "inspect", "bridge").stdout)
    with s3_server(bridge["IPAM"]["Config"][0]["Gateway"]) as server:
        use(server, monkeypatch)
        server.make_bucket("fleet")
        yield server
