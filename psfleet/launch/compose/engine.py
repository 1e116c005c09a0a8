"""Connects to the Docker engine and runs its compose plugin; errors name in one line what is missing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import requests
from docker.errors import DockerException, ImageNotFound

from psfleet.errors import LostPeerError, UsageError, innermost
from psfleet.job.container import Container

ENGINE_VERSION = (20, 10)
PLUGIN_VERSION = (2, 20)
ANSWER_SECS = 60
COMPOSE_SECS = 1800.0
"""How long `docker compose` may take; it may pull the images of monitoring."""
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
    """A client of the engine that DOCKER_HOST names, or else of this machine's engine.

    Raises:
        UsageError: The engine cannot be reached or is too old.
    """
    try:
        client = docker.from_env(timeout=ANSWER_SECS)
        text = client.version()["Version"]
    except DockerException as error:
        raise UsageError(f"no Docker engine can be reached ({innermost(error)}): start one; {WITHOUT}") from error
    if _version(text) < ENGINE_VERSION:
        raise UsageError(f"the Docker engine is {text}, expected {_dotted(ENGINE_VERSION)} or later; {WITHOUT}")
    return client


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
            ["docker", "compose", "version", "--short"], capture_output=True, text=True, check=False
        )  # fmt: skip
    except FileNotFoundError as error:
        raise UsageError(f"there is no `docker` command, {wanted}; {WITHOUT}") from error
    if done.returncode != 0:
        raise UsageError(f"`docker compose` does not work, {wanted}; {WITHOUT}")
    if _version(done.stdout) < PLUGIN_VERSION:
        raise UsageError(f"`docker compose` is {done.stdout.strip()}, {wanted}; {WITHOUT}")


def compose(project: str, text: str, folder: Path, *arguments: str) -> None:
    """Runs `docker compose` on a file's text, with paths relative to a folder.

    Raises:
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
        raise LostPeerError(f"{what}: {last.strip()}")


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version; (0, 0) if there are none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
