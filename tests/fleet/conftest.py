"""A ps that the tests of a module share, and a client of it for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from support.service_process import Service, running

from psfleet.control.client import PsClient


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A ps that serves any run."""
    with running("ps", tmp_path_factory.mktemp("shared")) as service:
        yield service.serving()


@pytest.fixture
def client(shared: Service) -> Iterator[PsClient]:
    """Calls the shared ps for a run that no other test has."""
    with shared.client(f"run-{secrets.token_hex(4)}") as client:
        yield client
        client.reset()
