"""Runs a command in a container of a Docker engine, with its stdin and stdout."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import docker

from psfleet.control.relay_client import CommandEnd
from psfleet.errors import LostPeerError
from psfleet.platforms.compose.engine import translate_errors

READ_BYTES = 1 << 18
SEND_SECS = 60.0
"""How long the engine may take nothing of what is sent."""
HEADER = struct.Struct(">BxxxL")
"""Before each piece of output: its stream, and its length; see "Attach to a container" in the engine's API."""
STDERR = 2
ERROR_BYTES = 4096
"""Of what is kept of stderr: the end."""


class ContainerCommand:
    """A command in a container; see `Command`.

    Args of the constructor:
        connection: The socket on which the engine carries the command's streams.
        inspect: Returns the command as the engine describes it.
    """

    def __init__(self, connection: Any, inspect: Any) -> None:
        self._connection = connection
        self._inspect = inspect
        self._arrived = bytearray()
        # What is left of the present piece, and its stream.
        self._left, self._stream = 0, 0
        self._errors = b""

    def send(self, data: bytes) -> None:
        """See `Command`."""
        try:
            self._connection.settimeout(SEND_SECS)
            self._connection.sendall(data)
        except OSError as error:
            raise LostPeerError(f"the Docker engine takes nothing for a command: {error}") from error

    def receive(self, timeout_secs: float) -> bytes | None:
        """See `Command`."""
        try:
            # 0 would make the socket non-blocking, which has another exception.
            self._connection.settimeout(max(timeout_secs, 1e-4))
            data = self._connection.recv(READ_BYTES)
        except TimeoutError:
            return b""
        except OSError as error:
            raise LostPeerError(f"the Docker engine: a command's connection broke: {error}") from error
        if not data:
            return None
        self._arrived += data
        return b"".join(self._pieces())

    def end(self) -> CommandEnd:
        """See `Command`."""
        with translate_errors():
            code = self._inspect().get("ExitCode")
        return CommandEnd(code, " ".join(self._errors.decode(errors="replace").split()))

    def _pieces(self) -> Iterator[bytes]:
        """What has arrived of stdout."""
        while self._arrived:
            if not self._left:
                if len(self._arrived) < HEADER.size:
                    return
                self._stream, self._left = HEADER.unpack_from(self._arrived)
                del self._arrived[: HEADER.size]
                continue
            piece = bytes(self._arrived[: self._left])
            del self._arrived[: self._left]
            self._left -= len(piece)
            if self._stream == STDERR:
                self._errors = (self._errors + piece)[-ERROR_BYTES:]
            else:
                yield piece


@contextmanager
def running(client: docker.DockerClient, name: str, words: Sequence[str]) -> Iterator[ContainerCommand]:
    """Context manager for a command in a container; its end closes the command's stdin.

    Raises:
        LostPeerError: The engine does not answer, or the container does not run.
    """
    with translate_errors():
        number = client.api.exec_create(name, list(words), stdin=True)["Id"]
        found = client.api.exec_start(number, socket=True)
    # For an engine at a Unix socket the package returns a file around the socket, which can only read.
    connection = getattr(found, "_sock", found)
    try:
        yield ContainerCommand(connection, lambda: client.api.exec_inspect(number))
    finally:
        connection.close()
        found.close()
