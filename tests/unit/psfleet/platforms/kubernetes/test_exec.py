"""Commands in pods whose output is read to its end, over connections of the kind that the API opens."""

from __future__ import annotations

import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL, WSClient
from websocket import WebSocket

from psfleet.errors import LostPeerError, UsageError
from psfleet.platforms.kubernetes import api
from psfleet.platforms.kubernetes import exec as pod_exec
from psfleet.platforms.kubernetes.exec import execute

Frame = tuple[int, bytes]
MIB = 1 << 20


def connection(end: socket.socket) -> WebSocket:
    """A connection whose handshake is over."""
    made = WebSocket(enable_multithread=True)
    made.sock, made.connected = end, True
    return made


@contextmanager
def replied(monkeypatch: pytest.MonkeyPatch, reply: Any) -> Iterator[Iterator[bytes]]:
    """The output of `tar -c` in pod-1 for what the API answers: a connection, or an error."""

    def stream(*arguments: Any, container: str, **options: Any) -> Any:
        assert container == "results", "others may be in the pod"
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(pod_exec, "stream", stream)
    cluster: Any = SimpleNamespace(namespace="here", api=SimpleNamespace(configuration=None))
    yield execute(cluster, "pod-1", "results", ["tar", "-c"])


@contextmanager
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WebSocket, Iterator[bytes]]]:
    """The API's end of a connection, and the output that the other end reads; that one must be closed in the end."""
    far, near = socket.socketpair()
    with far, near:
        monkeypatch.setattr("kubernetes.stream.ws_client.create_websocket", lambda *_: connection(near))
        with replied(monkeypatch, WSClient(None, "", None, capture_all=True, binary=True)) as output:
            yield connection(far), output
        assert near.fileno() == -1, "closed"


def send(end: WebSocket, frames: Sequence[Frame]) -> None:
    """Sends frames of channels, then the end."""
    for channel, content in frames:
        end.send_binary(bytes([channel]) + content)
    end.send_close()


def verdict(**content: Any) -> Frame:
    """The last frame of a command that ended by itself."""
    return ERROR_CHANNEL, json.dumps(content).encode()


def failure(code: int) -> Frame:
    """That of a command with this exit code."""
    cause = {"reason": "ExitCode", "message": str(code)}
    return verdict(status="Failure", message=f"exit code {code}", details={"causes": [cause]})


def test_a_command_that_succeeds_returns_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [(STDOUT_CHANNEL, b"a"), (STDERR_CHANNEL, b"note"), (STDOUT_CHANNEL, b"b"), verdict(status="Success")]
    with connected(monkeypatch) as (end, output):
        send(end, frames)
        assert list(output) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([(STDERR_CHANNEL, b"no\nspace"), failure(2)], "no space"),
        ([failure(2)], "exit code 2"),
        ([verdict(status="Failure", message="no such container")], "no such container"),
        ([], "the connection broke"),
    ],
    ids=["said", "silent", "no code", "no verdict"],
)
def test_a_command_that_fails_or_has_no_verdict_is_no_success(
    frames: Sequence[Frame], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(monkeypatch) as (end, output):
        send(end, [(STDOUT_CHANNEL, b"part"), *frames])
        assert next(output) == b"part"
        with pytest.raises(LostPeerError, match=f"^tar -c in pod pod-1: {problem}$"):
            next(output)


def test_a_connection_that_breaks_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch) as (end, output):
        end.send_binary(bytes([STDOUT_CHANNEL]) + b"part")
        assert next(output) == b"part"
        end.sock.close()
        with pytest.raises(LostPeerError, match=r"tar.* in pod pod-1.*: (the connection broke|.*reset)"):
            next(output)


def test_a_command_that_prints_nothing_for_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_exec, "SILENT_SECS", 0.2)
    with (
        connected(monkeypatch) as (_, output),
        pytest.raises(LostPeerError, match=r"tar in pod pod-1 printed nothing for 0\.2 s"),
    ):
        list(output)


def test_an_api_that_refuses_is_an_error_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package raises what the API answers to the request for a connection as an error without a status."""
    message = 'pods "pod-1" is forbidden: User "ann" cannot create resource "pods/exec"'
    answer = json.dumps({"kind": "Status", "message": message, "code": 403})
    refusal = api.ApiException(status=0, reason=f"Handshake status 403 Forbidden -+-+- {{'date': 'x'}} -+-+- {answer}")
    with (
        replied(monkeypatch, refusal) as output,
        pytest.raises(UsageError, match=f"^Kubernetes refuses to run tar in pod pod-1: {message}$"),
    ):
        list(output)


def test_an_archive_is_never_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    content, num_frames = bytes(64 << 10), 256
    frames = [*[(STDOUT_CHANNEL, content)] * num_frames, verdict(status="Success")]
    with connected(monkeypatch) as (end, output):
        sender = threading.Thread(target=send, args=(end, frames))
        sender.start()
        tracemalloc.start()
        try:
            num_bytes = sum(len(chunk) for chunk in output)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            sender.join()
    assert num_bytes == num_frames * len(content)
    assert peak < 2 * MIB, f"{peak / MIB:.1f} MiB of {num_bytes / MIB:.0f}"
