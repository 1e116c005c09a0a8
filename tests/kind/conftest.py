"""Fixtures of tests on a real cluster: the cluster, and namespaces whose pods, events and logs are kept on failure."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import kind_cluster
from support.kind_cluster import host_address
from support.kind_fleet import Space, made_space
from support.s3_server import S3Server, s3_server, use

FAILED = pytest.StashKey[bool]()
"""Whether a test of a module has failed, so that pods, events and logs of its namespace are kept."""


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """Of a cluster with the images of this tree: that of `make kind-up` if it is up, or one for this session."""
    was_up = kind_cluster.is_up()
    kind_cluster.up()
    yield kind_cluster.kubeconfig()
    if not was_up:
        kind_cluster.down()


@pytest.fixture
def space(kubeconfig: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    """A namespace for one test."""
    with made_space(kubeconfig, tmp_path) as made:
        yield made
        _record(made, request.node.stash.get(FAILED, False))


@pytest.fixture(scope="module")
def shared_space(
    kubeconfig: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Space]:
    """A namespace for all tests of a module."""
    with made_space(kubeconfig, tmp_path_factory.mktemp("space")) as made:
        yield made
        _record(made, request.node.stash.get(FAILED, False))


@pytest.fixture
def s3(kubeconfig: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server outside of the cluster: at the machine's address on the nodes' network."""
    with s3_server(host_address()) as server:
        use(server, monkeypatch)
        server.make_bucket("fleet")
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remembers failures, for the test and for its module."""
    report = yield
    if report.failed:
        for node in item.listchain():
            node.stash[FAILED] = True
    return report


def _record(space: Space, has_failed: bool) -> None:
    """Keeps pods, events and logs of a namespace whose test failed."""
    if not has_failed:
        return
    folder = space.folder / "record"
    folder.mkdir(exist_ok=True)
    for name, command in {
        "pods.txt": ("describe", "pods,jobs,pvc"),
        "events.txt": ("get", "events", "--sort-by=.lastTimestamp"),
    }.items():
        (folder / name).write_text(_printed(space, *command))
    for pod in space.kubectl("get", "pods", "-o", "name", check=False).split():
        (folder / f"{pod.rpartition('/')[2]}.log").write_text(_printed(space, "logs", pod))
    print(f"\npods, events and logs of the namespace: {folder}")


def _printed(space: Space, *command: str) -> str:
    try:
        return space.kubectl(*command, check=False)
    except subprocess.TimeoutExpired as error:
        return str(error)
