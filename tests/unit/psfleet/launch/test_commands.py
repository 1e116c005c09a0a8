"""Calls through the connections by which an engine and a cluster carry a command's streams, without either."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from docker.errors import APIError
from kubernetes.client.exceptions import ApiException
from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDIN_CHANNEL, STDOUT_CHANNEL
from support.piped_relay import Piped, relay
from websocket import ABNF, WebSocket, WebSocketException

from psfleet.control import run_control_pb2 as pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.credentials import channel
from psfleet.control.relay_client import Command, CommandEnd, RelayClient
from psfleet.control.server import serving
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import LostPeerError, PsfleetError, UsageError
from psfleet.platforms.compose.exec import ContainerCommand, running
from psfleet.platforms.kubernetes import exec as pod_exec
from psfleet.platforms.kubernetes.exec import PodCommand
from psfleet.processes.ports import free_addresses

CALL_SECS = 20.0
TENSORS = {"a": np.random.default_rng(7).random(1_000_003), "b": np.array([10, 13], np.uint8)}
PIECE = 70_000
STDOUT, STDERR = 1, 2


class Mirror(run_control_pb2_grpc.RunControlServicer):
    """Sends back the tensors that it gets."""

    def Gradient(self, request_iterator: Any, context: Any) -> Any:
        """See run_control.proto."""
        head, tensors = receiving(request_iterator, lambda specs: None)
        yield from sending(head.caller, tensors)


class Engine:
    """The engine's end of a connection."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def read(self) -> bytes:
        """The next bytes for the command's stdin; empty: the connection is closed."""
        return self._end.recv(PIECE)

    def write(self, stream: int, data: bytes) -> None:
        """Sends what the command prints, cut where the stream's header is not."""
        packed = struct.pack(">BxxxL", stream, len(data)) + data
        for at in range(0, len(packed), 60_001):
            self._end.sendall(packed[at : at + 60_001])

    def over(self, code: int) -> None:
        """Ends the connection with the command."""
        self._end.shutdown(socket.SHUT_RDWR)


class Api:
    """The API's end of a connection."""

    def __init__(self, end: socket.socket) -> None:
        self._end = wrapped(end)

    def read(self) -> bytes:
        """See `Engine`."""
        opcode = ABNF.OPCODE_PONG
        while opcode == ABNF.OPCODE_PONG:
            opcode, frame = self._end.recv_data_frame(True)
        if opcode == ABNF.OPCODE_CLOSE:
            return b""
        assert frame.data[0] == STDIN_CHANNEL
        return bytes(frame.data[1:])

    def write(self, stream: int, data: bytes) -> None:
        """See `Engine`."""
        self._end.send_binary(bytes([STDOUT_CHANNEL if stream == STDOUT else STDERR_CHANNEL]) + data)

    def over(self, code: int) -> None:
        """See `Engine`."""
        cause = {"reason": "ExitCode", "message": str(code)}
        verdict = {"status": "Failure", "message": "it failed", "details": {"causes": [cause]}}
        verdict = verdict if code else {"status": "Success"}
        self._end.send_binary(bytes([ERROR_CHANNEL]) + json.dumps(verdict).encode())
        self._end.send_close()


def wrapped(end: socket.socket) -> WebSocket:
    """A connection whose handshake is over."""
    connection = WebSocket(enable_multithread=True)
    connection.sock, connection.connected = end, True
    return connection


Kind = tuple[Callable[[socket.socket], Any], Callable[[socket.socket], Command]]
KINDS: dict[str, Kind] = {
    "compose": (Engine, lambda end: ContainerCommand(end, lambda: {"ExitCode": 3})),
    "kubernetes": (Api, lambda end: PodCommand(wrapped(end))),
}


@pytest.fixture(params=list(KINDS))
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Command, socket.socket]]:
    """The platform's end of a connection, the caller's, and the caller's socket."""
    far, near = socket.socketpair()
    for_platform, for_caller = KINDS[request.param]
    with far, near:
        yield for_platform(far), for_caller(near), near


def everything(command: Command) -> bytes:
    """What arrives until the command ends."""
    found = b""
    while (data := command.receive(CALL_SECS)) is not None:
        found += data
    return found


def copy(read: Callable[[], bytes], write: Callable[[bytes], object]) -> None:
    with suppress(OSError, WebSocketException, LostPeerError):
        while data := read():
            write(data)


@contextmanager
def carried(to_chief: grpc.Channel, ends: tuple[Any, Command, socket.socket]) -> Iterator[Command]:
    """A relay whose streams the connection carries."""
    platform, command, near = ends
    with ExitStack() as stack:
        piped: Piped = stack.enter_context(relay(to_chief))
        copies = [
            (platform.read, piped.send),
            (lambda: piped.receive(CALL_SECS) or b"", lambda data: platform.write(STDOUT, data)),
        ]
        threads = [threading.Thread(target=copy, args=each) for each in copies]
        for thread in threads:
            thread.start()
        stack.callback(lambda: [thread.join(CALL_SECS) for thread in threads])
        stack.callback(lambda: near.shutdown(socket.SHUT_RDWR))
        yield command


def test_tensors_are_the_same_there_and_back(ends: tuple[Any, Command, socket.socket]) -> None:
    [address] = free_addresses(1)
    caller = pb.RunCall(run="run")
    with serving(address, run_control=Mirror()), channel(address.control, "worker", None) as to_chief:
        client = RelayClient(lambda: carried(to_chief, ends), "the chief")
        found = client.call(
            "Gradient",
            lambda: sending(caller, TENSORS),
            consume=lambda answers: receiving(answers, lambda specs: None)[1],
        )
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(found[name], value)


def test_what_is_printed_on_stderr_is_not_in_the_way_of_stdout(ends: tuple[Any, Command, socket.socket]) -> None:
    platform, command, _ = ends
    assert command.receive(0.0) == b""
    for stream, text in ((STDOUT, b"\0\xff"), (STDERR, b"no\n"), (STDOUT, b"\n"), (STDERR, b"space"), (STDOUT, b"b")):
        platform.write(stream, text)
    platform.over(3)
    assert everything(command) == b"\0\xff\nb"
    assert command.receive(0.0) is None
    assert command.end() == CommandEnd(3, "no space")


def test_a_connection_that_breaks_is_the_end(ends: tuple[Any, Command, socket.socket]) -> None:
    platform, command, near = ends
    platform.write(STDOUT, b"part")
    far = platform._end if isinstance(platform, Engine) else platform._end.sock
    far.shutdown(socket.SHUT_WR)
    assert everything(command) == b"part"
    with suppress(OSError):
        near.shutdown(socket.SHUT_WR)
    with pytest.raises(LostPeerError):
        command.send(os.urandom(1 << 20))


@pytest.mark.parametrize(
    ("status", "kind"), [("403 Forbidden", UsageError), ("404 Not Found", LostPeerError), ("500", LostPeerError)]
)
def test_a_command_that_the_api_forbids_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, status: str, kind: type[PsfleetError]
) -> None:
    def refuse(*words: Any, **options: Any) -> None:
        assert options["stdin"]
        raise ApiException(status=0, reason=f"Handshake status {status} -+-+- {{}}")

    monkeypatch.setattr(pod_exec, "stream", refuse)
    cluster: Any = SimpleNamespace(namespace="here", api=SimpleNamespace(configuration=None))
    with (
        pytest.raises(kind, match="run python in pod chief-0"),
        pod_exec.running(cluster, "chief-0", "chief", ["python"]),
    ):
        pass


def test_a_command_in_a_container_that_does_not_run_is_a_lost_peer() -> None:
    def refuse(*words: Any, **options: Any) -> None:
        raise APIError("409 Conflict: container chief is not running")

    client: Any = SimpleNamespace(api=SimpleNamespace(exec_create=refuse))
    with pytest.raises(LostPeerError, match="chief is not running"), running(client, "chief", ["python"]):
        pass


def test_a_verdict_without_an_exit_code_has_none() -> None:
    far, near = socket.socketpair()
    with far, near:
        command = PodCommand(wrapped(near))
        wrapped(far).ping()
        wrapped(far).send_binary(bytes([ERROR_CHANNEL]) + b'{"status": "Failure", "message": "no such container"}')
        wrapped(far).send_close()
        assert everything(command) == b""
        assert command.end() == CommandEnd(None, "no such container")
