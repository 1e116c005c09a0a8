"""What fleet tests share: a fork server for all, a ps for each module, and a client of that ps for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from support.commands import standing, standing_fork_server
from support.service_process import Service, running

from psfleet.control.client import PsClient


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> Iterator[None]:
    """Forks the processes that tests start by `support.commands` from one that has imported TensorFlow.

    Tests that start `psfleet train` themselves (test_start.py, test_wheel.py) do it as users do.
    """
    with standing_fork_server():
        yield


@pytest.fixture
def launches_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `psfleet.train` in this process use the session's fork server."""
    for name, value in standing().items():
        monkeypatch.setenv(name, value)


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
