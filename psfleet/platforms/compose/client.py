"""A client of a standing fleet in a container of its own, whose output is this process's."""

from __future__ import annotations

import codecs
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

import docker
import requests
from docker.errors import APIError, DockerException
from docker.models.containers import Container
from docker.utils.socket import STDERR, frames_iter

from psfleet.errors import StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ATTACHED = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}


def run(client: docker.DockerClient, create: Callable[[], Container]) -> int:
    """Creates and starts a container, copies its stdout and stderr here until it ends, and passes signals on to it.

    The container removes itself. Its stdin ends with this process (see `psfleet.processes.attended`).

    Returns:
        Its exit code.

    Raises:
        StoppedError: A signal came before the container had started.
    """
    with _Signals() as signals:
        created = create()
        try:
            socket = client.api.attach_socket(created.id, params=ATTACHED)
            # Before its start: the engine does not know the exit code of a container that has removed itself.
            removal = _removal(client, created)
            signals.check()
            created.start()
            signals.pass_to(created)
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


class _Signals:
    """SIGINT and SIGTERM of this process: kept until its container has started, and then passed on to that.

    No handler raises: an exception between the creation of a container and its removal would leave it behind.
    """

    def __init__(self) -> None:
        self._kept = 0
        self._container: Container | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises `StoppedError` if a signal has come."""
        if self._kept:
            raise StoppedError(self._kept)

    def pass_to(self, started: Container) -> None:
        """Passes signals on to a container, one that has come already included."""
        self._container = started
        if self._kept:
            self._send(self._kept)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._container is None:
            self._kept = number
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        # It may end at this moment.
        with suppress(APIError):
            assert self._container is not None, "only called with one"
            self._container.kill(signal=signal.Signals(number).name)
