"""Connects to the Docker engine and runs its compose plugin; errors name in one line what is missing."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import requests
from docker.context import ContextAPI
from docker.errors import DockerException, ImageNotFound
from docker.utils import kwargs_from_env

from psfleet.errors import LostPeerError, PsfleetError, UsageError, innermost
from psfleet.job.container import Container

API_VERSION = (1, 41)
"""Of Docker 20.10. The engine's own version may be any text: distributions and vendors choose it."""
PODMAN = "Podman Engine"
"""What Podman calls itself in the answer of its Docker API."""
PLUGIN_VERSION = (2, 20)
UNIX = "unix://"
ANSWER_SECS = 60
PLUGIN_SECS = 60.0
"""How long the compose plugin may take to print its version."""
COMPOSE_SECS = 1800.0
"""How long `docker compose` may take; it may pull the images of monitoring."""
NO_SOURCE = "bind source path does not exist"
"""In the engine's refusal of a mount."""
WITHOUT = "`psfleet train JOB` needs no containers"
OWN_IMAGES = frozenset(
    field.default for field in (Container.model_fields["ps_image"], Container.model_fields["worker_image"])
)
"""The images that this repository builds."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Context manager or decorator that translates errors of the docker package.

    Raises:
        LostPeerError: The engine does not answer, or refused a request.
    """
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise LostPeerError(f"the Docker engine: {innermost(error)}") from error


def connect() -> docker.DockerClient:
    """A client of the engine that `docker` itself uses: that of DOCKER_HOST, or else of the current context.

    Raises:
        UsageError: The engine cannot be reached, is too old, or is another one than Docker's.
    """
    where = "DOCKER_HOST"
    try:
        settings = _settings()
        where = str(settings["base_url"])
        client = open_client(**settings)
        found = client.version()
    except (DockerException, requests.RequestException, OSError) as error:
        reason = innermost(error)
        raise UsageError(f"no Docker engine can be reached at {where} ({reason}): start one; {WITHOUT}") from error
    _require_docker(found)
    return client


def open_client(base_url: str, **settings: Any) -> docker.DockerClient:
    """A client of the engine at this address.

    A Unix socket is tried first: the docker package leaves its own one open where no engine listens.

    Raises:
        OSError: Nothing listens at the Unix socket.
        DockerException: The engine does not answer.
    """
    if base_url.startswith(UNIX):
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(ANSWER_SECS)
            trial.connect(base_url.removeprefix(UNIX))
    return docker.DockerClient(base_url, timeout=ANSWER_SECS, **settings)


def _settings() -> dict[str, Any]:
    """Arguments of the client: `base_url`, and `tls` where it applies.

    Raises:
        UsageError: The current context does not exist (the docker package would take the default one) or cannot be
            read, or psfleet cannot connect to such an address.
    """
    found: dict[str, Any] = kwargs_from_env()
    if "base_url" not in found:
        found |= _of_context()
    if "base_url" not in found:
        raise UsageError(f"the current Docker context does not exist, expected one of `docker context ls`; {WITHOUT}")
    url = str(found["base_url"])
    if url.startswith("ssh:"):
        raise UsageError(
            f"the Docker engine is {url}, expected unix:// or tcp://: forward its socket with "
            f"`ssh -N -L /tmp/engine.sock:/var/run/docker.sock HOST` and set DOCKER_HOST=unix:///tmp/engine.sock"
        )
    return found


def _of_context() -> dict[str, Any]:
    """The settings of the current context; empty if it does not exist.

    Raises:
        UsageError: Its file cannot be read, for which the docker package has no exception of its own.
    """
    try:
        return dict(ContextAPI.kwargs_from_context())
    except DockerException:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the current Docker context cannot be read ({type(error).__name__}: {reason})") from error


def _require_docker(found: Mapping[str, Any]) -> None:
    """Checks what an engine answers to `GET /version`.

    Raises:
        UsageError: It is not Docker's engine, or too old.
    """
    version, api = found.get("Version"), str(found.get("ApiVersion"))
    if any(part.get("Name") == PODMAN for part in found.get("Components") or ()):
        raise UsageError(f"the engine is Podman {version}, expected Docker's; {WITHOUT}")
    if _version(api) < API_VERSION:
        wanted = f"expected API {_dotted(API_VERSION)} (Docker 20.10) or later"
        raise UsageError(f"the Docker engine is {version} with API {api}, {wanted}; {WITHOUT}")


def require_images(client: docker.DockerClient, names: Sequence[str]) -> None:
    """Checks that the engine has images.

    Raises:
        UsageError: One is missing.
    """
    for name in names:
        try:
            client.images.get(name)
        except ImageNotFound as error:
            how = "`make images` builds it" if name in OWN_IMAGES else "expected one that you have built or pulled"
            raise UsageError(f"the Docker engine has no image {name}: {how}; {WITHOUT}") from error


def require_plugin() -> None:
    """Checks that the compose plugin is installed.

    Raises:
        UsageError: The plugin is missing or too old.
    """
    wanted = f"expected Docker's compose plugin {_dotted(PLUGIN_VERSION)} or later"
    try:
        done = subprocess.run(
            ["docker", "compose", "version", "--short"],
            capture_output=True, text=True, check=False, timeout=PLUGIN_SECS,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise UsageError(f"there is no `docker` command, {wanted}; {WITHOUT}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"`docker compose` does not answer, {wanted}; {WITHOUT}") from error
    if done.returncode != 0:
        raise UsageError(f"`docker compose` does not work, {wanted}; {WITHOUT}")
    if _version(done.stdout) < PLUGIN_VERSION:
        raise UsageError(f"`docker compose` is {done.stdout.strip()}, {wanted}; {WITHOUT}")


def compose(project: str, text: str, folder: Path, *arguments: str) -> None:
    """Runs `docker compose` on a file's text, with paths relative to a folder.

    Raises:
        UsageError: The engine does not find a folder or file to mount.
        LostPeerError: It failed (the message ends with its last line), or did not end in `COMPOSE_SECS`.
    """
    command = ["docker", "compose", "--progress", "quiet", "-p", project, "-f", "-", "--project-directory", str(folder)]
    what = f"docker compose {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [*command, *arguments], input=text, capture_output=True, text=True, check=False, timeout=COMPOSE_SECS
        )
    except subprocess.TimeoutExpired as error:
        raise LostPeerError(f"{what}: it did not end within {COMPOSE_SECS:g} s") from error
    if done.returncode != 0:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise failure(what, last.strip())


def failure(what: str, message: str) -> PsfleetError:
    """The error of a `docker compose` that failed with a message."""
    _, is_missing, path = message.partition(NO_SOURCE)
    if not is_missing:
        return LostPeerError(f"{what}: {message}")
    return UsageError(
        f"the machine of the Docker engine has no {path.strip(' :')}: on another machine the program must be in an "
        "image (container.program: image), and container.mounts and tls cannot be used"
    )


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version; (0, 0) if there are none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
