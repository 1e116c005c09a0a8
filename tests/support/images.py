"""The engine and the images under test: docker commands with deadlines, and containers that end with their block."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar

from psfleet.errors import DeadlineError
from psfleet.polling import wait_until

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PS_IMAGE, WORKER_IMAGE = "psfleet-ps:latest", "psfleet-worker:latest"

COMMAND_SECS = 60.0
"""Most that one docker command takes, unless the caller sets another limit; a container starts in about a second."""
BUILD_SECS = 900.0
"""A build of both images from nothing takes about 2 minutes, most of it for TensorFlow."""
LOCKED = (
    "--read-only",
    *("--tmpfs", "/tmp"),
    *("--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges"),
)
"""What every container of a fleet is started with."""


def docker(*arguments: str, timeout_secs: float = COMMAND_SECS, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs `docker ARGUMENTS`; with `check`, fails with its output if its exit code is not 0."""
    done = subprocess.run(
        ["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_secs
    )
    if check:
        assert done.returncode == 0, f"docker {' '.join(arguments)}: exit code {done.returncode}\n{printed(done)}"
    return done


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """The ends of both outputs of a command."""
    return f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def require_engine() -> None:
    """Fails, rather than skips, where no Docker engine answers."""
    try:
        docker("info", "--format", "{{.ServerVersion}}")
    except (FileNotFoundError, AssertionError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"tests/compose needs a Docker engine that answers: {error}") from error


def build_images() -> None:
    """Builds both images of this tree with `make images`; takes seconds when nothing changed."""
    done = subprocess.run(
        ["make", "images"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_SECS
    )
    assert done.returncode == 0, f"make images: exit code {done.returncode}\n{printed(done)}"


def inspect(image: str) -> dict[str, Any]:
    """Description of an image by `docker image inspect`."""
    content: list[dict[str, Any]] = json.loads(docker("image", "inspect", image).stdout)
    return content[0]


def shell(image: str, script: str, *options: str) -> str:
    """What a shell script prints in a new container of an image, as its own user unless `options` name another."""
    return docker("run", "--rm", "--entrypoint", "/bin/sh", *options, image, "-euc", script).stdout


@contextmanager
def built(folder: Path) -> Iterator[str]:
    """Builds the Dockerfile of a folder, with that folder as its context; the image is removed with the block."""
    tag = unique("image") + ":latest"
    docker("build", "--tag", tag, str(folder), timeout_secs=BUILD_SECS)
    try:
        yield tag
    finally:
        docker("image", "rm", "--force", tag)


def bridge_address() -> str:
    """The address of the engine's machine on the default bridge."""
    (bridge,) = json.loads(docker("network", "inspect", "bridge").stdout)
    configuration = bridge["IPAM"]["Config"][0]
    # Docker 20.10 does not name it until the engine starts again: it is the first one.
    return configuration.get("Gateway") or str(next(ip_network(configuration["Subnet"]).hosts()))


@contextmanager
def network(*options: str) -> Iterator[str]:
    """A network of its own, removed with the block."""
    name = unique("network")
    docker("network", "create", *options, name)
    try:
        yield name
    finally:
        docker("network", "rm", name)


@contextmanager
def volume() -> Iterator[str]:
    """A fresh named volume, removed with the block."""
    name = unique("volume")
    docker("volume", "create", name)
    try:
        yield name
    finally:
        docker("volume", "rm", name)


@dataclass(frozen=True)
class Container:
    """A container that was started, running or ended."""

    name: str

    def logs(self) -> str:
        """Everything that it printed."""
        done = docker("logs", self.name)
        return done.stdout + done.stderr

    def entries(self) -> list[dict[str, Any]]:
        """The JSON lines among its logs."""
        lines = docker("logs", self.name).stdout.splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait(self, timeout_secs: float) -> int:
        """Its exit code, once it has ended."""
        try:
            return int(docker("wait", self.name, timeout_secs=timeout_secs).stdout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} did not end in {timeout_secs:g} s\n{self.logs()[-4000:]}") from error

    def wait_for(self, probe: Callable[[], T], timeout_secs: float, what: str) -> T:
        """What `probe` returns once that is true; fails with the container's log if it never is."""
        try:
            return wait_until(probe, timeout_secs, what)
        except DeadlineError as error:
            raise AssertionError(f"{error}\n{self.logs()[-4000:]}") from error

    def is_listening(self, port: int) -> bool:
        """Whether a process of it listens on a TCP port."""
        listening = f":{port:04X} .* 0A "
        return self.execute("grep", "-q", listening, "/proc/net/tcp", "/proc/net/tcp6").returncode == 0

    def execute(self, *command: str, timeout_secs: float = COMMAND_SECS) -> subprocess.CompletedProcess[str]:
        """Runs a command inside it; the exit code is the caller's to look at."""
        return docker("exec", self.name, *command, timeout_secs=timeout_secs, check=False)


@contextmanager
def container(
    image: str, *options: str, command: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Container]:
    """Starts a container as a fleet's are started; it is removed, with its anonymous volumes, with the block."""
    name = unique("container")
    variables = [part for key, value in (environment or {}).items() for part in ("--env", f"{key}={value}")]
    docker("run", "--detach", "--name", name, *LOCKED, *variables, *options, image, *command)
    try:
        yield Container(name)
    finally:
        docker("rm", "--force", "--volumes", name)


def unique(kind: str) -> str:
    """A name that no other test, of any session, gives."""
    return f"psfleet-test-{kind}-{uuid.uuid4().hex[:12]}"
