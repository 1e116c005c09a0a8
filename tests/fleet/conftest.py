"""What fleet tests share: a fork server for all, a ps for each module, and a client of that ps for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Psfleet, commands
from support.commands import forked_fork_server, preloading_fork_server, standing, standing_fork_server
from support.service_process import Service, running
from support.standing_ps import standing_ps

from psfleet.cli import main
from psfleet.control.client import PsClient
from psfleet.errors import PsfleetError
from psfleet.job.job import Job
from psfleet.report.verdict import Verdict

SHARED = "psfleet_fork_server"
"""The name under which the processes of a parallel test run learn the path of their shared fork server."""
SHARED_PATH = pytest.StashKey[Path]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Has all processes of a parallel test run share one import of TensorFlow for the processes that they start."""
    until_end = ExitStack()
    config.add_cleanup(until_end.close)
    config.stash[SHARED_PATH] = until_end.enter_context(preloading_fork_server())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Passes the path of the fork server to a process of the test run."""
    node.workerinput[SHARED] = str(node.config.stash[SHARED_PATH])


@pytest.fixture(scope="session", autouse=True)
def _fork_server(pytestconfig: pytest.Config) -> Iterator[None]:
    """Forks the processes that tests start by `support.commands` from one that has imported TensorFlow.

    Tests that start `psfleet train` themselves (test_start.py, test_wheel.py) do it as users do.
    """
    shared = getattr(pytestconfig, "workerinput", {}).get(SHARED)
    server = preloading_fork_server() if shared is None else forked_fork_server(Path(shared))
    with server as path, standing_fork_server(path):
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


@pytest.fixture(scope="module")
def ps_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """`host:port` of two ps that serve any run, for `fleet.ps_addresses`."""
    with standing_ps(2, tmp_path_factory.mktemp("ps")) as addresses:
        yield addresses


@pytest.fixture
def psfleet_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Psfleet]:
    """Runs commands in this process; `validate` checks programs here, too, and not in one that imports TensorFlow."""
    monkeypatch.setattr(main, "check_program", _check_program)
    with commands(monkeypatch, capsys) as run:
        yield run


def _check_program(job: Job, folder: Path) -> str:
    """What `psfleet.processes.validation.check_program` does."""
    from worker_service import validation

    try:
        verdict = Verdict(summary=validation.check(job, folder))
    except PsfleetError as error:
        verdict = Verdict.of_error(error)
    return Verdict.model_validate_json(verdict.model_dump_json()).summary_or_raise()
