"""What every test on a real cluster gets: a cluster for the session, a namespace of its own, a record if it fails."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import kind_cluster
from support.kind_fleet import Space

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
FAILED = pytest.StashKey[bool]()
"""Whether a test of a module has failed, so that its namespace's pods are put on record."""


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remembers failures, for the test and for its module."""
    report = yield
    if report.failed:
        for node in item.listchain():
            node.stash[FAILED] = True
    return report


@contextmanager
def made_space(kubeconfig: Path, folder: Path) -> Iterator[Space]:
    """A namespace, and its end."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    own = folder / "kubeconfig"
    shutil.copy(kubeconfig, own)
    space = Space(name, own, folder)
    space.kubectl("create", "namespace", name)
    try:
        space.kubectl("label", "namespace", name, RESTRICTED)
        space.kubectl("config", "set-context", "--current", f"--namespace={name}")
        yield space
    finally:
        for process in space.processes:
            process.kill()
            process.wait()
        # A namespace removes its pods first, which wait for their Job, which waits to replace them: Jobs go before.
        space.kubectl("delete", "jobs", "--all", "--wait=false")
        space.kubectl("delete", "namespace", name, "--wait=false")


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
        (folder / name).write_text(_told(space, *command))
    for pod in space.kubectl("get", "pods", "-o", "name", check=False).split():
        (folder / f"{pod.rpartition('/')[2]}.log").write_text(_told(space, "logs", pod))
    print(f"\npods, events and logs of the namespace: {folder}")


def _told(space: Space, *command: str) -> str:
    try:
        return space.kubectl(*command, check=False)
    except subprocess.TimeoutExpired as error:
        return str(error)
