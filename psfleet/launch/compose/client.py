"""A client of a standing fleet in a container of its own, whose output is this process's."""

from __future__ import annotations

import codecs
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException
from docker.models.containers import Container
from docker.utils.socket import STDERR, frames_iter

from psfleet.errors import StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ATTACHED = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}


def run(client: docker.DockerClient, created: Container) -> int:
    """Starts a container, copies its stdout and stderr here until it ends, and passes signals on to it.

    The container removes itself. Its stdin ends with this process (see `psfleet.processes.attended`).

    Returns:
        Its exit code.

    Raises:
        StoppedError: A signal came before the container had started.
    """
    try:
        with _passing_signals(created) as has_started:
            socket = client.api.attach_socket(created.id, params=ATTACHED)
            # Before its start: the engine does not know the exit code of a container that has removed itself.
            removal = _removal(client, created)
            created.start()
            has_started()
            _copy(socket)
            return int(removal.json()["StatusCode"])
    finally:
        # Unless the engine or this command has failed, it is gone.
        with suppress(DockerException):
            created.remove(force=True, v=True)


def _removal(client: docker.DockerClient, created: Container) -> requests.Response:
    """A request that the engine has accepted, and answers when the container is removed."""
    url = f"{client.api.base_url}/v{client.api.api_version}/containers/{created.id}/wait"
    response: requests.Response = client.api.post(url, params={"condition": "removed"}, stream=True, timeout=None)
    response.raise_for_status()
    return response


def _copy(socket: Any) -> None:
    """Copies a container's two streams to those of this process until they end."""
    # The deadline of a request; a script may be silent for hours.
    getattr(socket, "_sock", socket).settimeout(None)
    # A piece may end within a character.
    decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in range(2)]
    for number, piece in frames_iter(socket, tty=False):
        is_error = number == STDERR
        stream = sys.stderr if is_error else sys.stdout
        stream.write(decoders[is_error].decode(piece))
        stream.flush()


@contextmanager
def _passing_signals(created: Container) -> Iterator[Callable[[], None]]:
    """Context manager in which signals go to the container; its value is called once that has started.

    Raises:
        StoppedError: A signal came before.
    """
    started: list[bool] = []

    def passed(number: int, _: FrameType | None) -> None:
        if not started:
            raise StoppedError(number)
        # It may end at this moment.
        with suppress(APIError):
            created.kill(signal=signal.Signals(number).name)

    before = {number: signal.signal(number, passed) for number in SIGNALS}
    try:
        yield lambda: started.append(True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
