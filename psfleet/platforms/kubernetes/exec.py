"""Runs a command in a pod: reads what it prints to its end, or exchanges data with it."""

from __future__ import annotations

import json
import select
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from kubernetes import client
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDIN_CHANNEL, STDOUT_CHANNEL
from websocket import ABNF, WebSocketConnectionClosedException

from psfleet.control.relay_client import CommandEnd
from psfleet.errors import LostPeerError
from psfleet.platforms.kubernetes.api import ANSWER_SECS, Cluster, translate_errors
from psfleet.polling import run_within

SILENT_SECS = 120.0
"""How long a command may print nothing, or take nothing of what is sent."""
CHUNK_BYTES = 1 << 16
"""Of what is sent in one message of the connection."""
ERROR_BYTES = 4096
"""Of what is kept of stderr: the end."""


def execute(cluster: Cluster, pod: str, container: str, command: Sequence[str]) -> Iterator[bytes]:
    """Runs a command in a container of a pod to its end, and yields its standard output in chunks as they arrive.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer, the command printed nothing for `SILENT_SECS`, or it failed.
    """
    with translate_errors(f"run {command[0]} in pod {pod}"):
        reply = _opened(cluster, pod, container, command, stdin=False)
    with _closing(reply):
        # Not the package's reader: it keeps all that has arrived, which may be more than fits into memory.
        process = PodCommand(reply.sock, f"{command[0]} in pod {pod}")
        deadline = time.monotonic() + SILENT_SECS
        while (chunk := process.receive(timeout_secs=1)) is not None:
            if chunk:
                yield chunk
                deadline = time.monotonic() + SILENT_SECS
            elif time.monotonic() > deadline:
                raise LostPeerError(f"{command[0]} in pod {pod} printed nothing for {SILENT_SECS:g} s")
    end = process.end()
    if end.code != 0:
        raise LostPeerError(f"{' '.join(command)} in pod {pod}: {end.text or 'no message'}")


class PodCommand:
    """A command in a container of a pod; see `Command`.

    It reads the messages of the connection one by one. The package's own reader keeps all of a stream, and copies what
    has arrived with each message.

    Args of the constructor:
        connection: To the API, as the `websocket` package has it.
        name: Of the command, for messages.
    """

    def __init__(self, connection: Any, name: str = "a command") -> None:
        self._connection = connection
        self._name = name
        self._errors, self._verdict = b"", b""
        self._is_over = False

    def send(self, data: bytes) -> None:
        """See `Command`."""
        prefix, view = bytes([STDIN_CHANNEL]), memoryview(data)
        with translate_errors(f"send to {self._name}"):
            self._connection.settimeout(SILENT_SECS)
            for start in range(0, len(view), CHUNK_BYTES):
                self._connection.send_binary(prefix + view[start : start + CHUNK_BYTES])

    def receive(self, timeout_secs: float) -> bytes | None:
        """See `Command`."""
        if self._is_over:
            return None
        with translate_errors(f"receive from {self._name}"):
            if not self._has_more(timeout_secs):
                return b""
            self._connection.settimeout(SILENT_SECS)
            try:
                opcode, frame = self._connection.recv_data_frame(True)
            except WebSocketConnectionClosedException:
                opcode, frame = ABNF.OPCODE_CLOSE, None
        if opcode == ABNF.OPCODE_CLOSE:
            self._is_over = True
            return None
        is_output = opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame is not None and frame.data
        return self._of_channel(frame.data[0], bytes(frame.data[1:])) if is_output else b""

    def end(self) -> CommandEnd:
        """See `Command`."""
        verdict = json.loads(self._verdict or '{"message": "the connection broke"}')
        text = self._errors.decode(errors="replace") or str(verdict.get("message", ""))
        return CommandEnd(_exit_code(verdict), " ".join(text.split()))

    def _of_channel(self, channel: int, content: bytes) -> bytes:
        """Keeps what is not of stdout."""
        if channel == STDERR_CHANNEL:
            self._errors = (self._errors + content)[-ERROR_BYTES:]
        elif channel == ERROR_CHANNEL:
            self._verdict += content
        return content if channel == STDOUT_CHANNEL else b""

    def _has_more(self, timeout_secs: float) -> bool:
        """Waits until something has arrived; it may have been deciphered already."""
        connection = self._connection.sock
        if isinstance(connection, ssl.SSLSocket) and connection.pending():
            return True
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(timeout_secs * 1000))


@contextmanager
def running(cluster: Cluster, pod: str, container: str, command: Sequence[str]) -> Iterator[PodCommand]:
    """Context manager for a command in a container of a pod; its end closes the command's stdin.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer, or the container does not run.
    """
    with translate_errors(f"run {command[0]} in pod {pod}"):
        reply = _opened(cluster, pod, container, command, stdin=True)
    with _closing(reply):
        yield PodCommand(reply.sock)


@contextmanager
def _closing(reply: Any) -> Iterator[None]:
    """Context manager that closes a connection at its end."""
    try:
        yield
    finally:
        reply.close()
        # After the API's own end of it, the package leaves its socket open.
        reply.sock.shutdown()


def _opened(cluster: Cluster, pod: str, container: str, command: Sequence[str], stdin: bool) -> Any:
    """The connection to a command that has started."""
    # A separate client: `stream` replaces a method of the client until the connection is open.
    core = client.CoreV1Api(client.ApiClient(cluster.api.configuration))
    opening = partial(
        stream, core.connect_get_namespaced_pod_exec, pod, cluster.namespace, container=container,
        command=list(command),
        stdout=True, stderr=True, stdin=stdin, tty=False, _preload_content=False, binary=True,
    )  # fmt: skip
    # The package opens the connection without a deadline.
    return run_within(ANSWER_SECS, opening)


def _exit_code(verdict: dict[str, Any]) -> int | None:
    """The exit code in the API's verdict on a command; None: it has none."""
    if verdict.get("status") == "Success":
        return 0
    causes = (verdict.get("details") or {}).get("causes") or ()
    found = [str(cause.get("message")) for cause in causes if cause.get("reason") == "ExitCode"]
    return int(found[0]) if found and found[0].isdigit() else None
