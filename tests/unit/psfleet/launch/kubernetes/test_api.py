"""The API's calls over a connection that breaks, or on which no answer comes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.config import kube_config
from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL
from websocket import WebSocketConnectionClosedException

from psfleet.errors import LostPeerError, UsageError
from psfleet.launch.kubernetes import api
from psfleet.launch.kubernetes import exec as pod_exec
from psfleet.launch.kubernetes.api import Cluster
from psfleet.launch.kubernetes.exec import execute
from psfleet.launch.kubernetes.objects import FleetObjects

LOG = "/api/v1/namespaces/here/pods/pod-1/log"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose API answers what its version is, and sends the first line of a log; no more."""
    is_over = threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path.startswith((LOG, "/version")):
                version = {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "",
                           "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}  # fmt: skip
                is_log = self.path.startswith(LOG)
                content = b"first\nsec" if is_log else json.dumps(version).encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content) + (b"" if is_log else b"0\r\n\r\n"))
                self.wfile.flush()
            if not self.path.startswith("/version"):
                is_over.wait(60)

        do_PATCH = do_DELETE = do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    path = tmp_path / "config"
    path.write_text(
        json.dumps(
            {
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "test", "user": {}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "here"}}],
            }
        )
    )
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    for module in (api, pod_exec):
        monkeypatch.setattr(module, "ANSWER_SECS", 0.3)
    monkeypatch.setattr(api, "FOLLOW_SECS", 0.3)
    found = Cluster()
    yield found
    is_over.set()
    found.api.rest_client.pool_manager.clear()
    server.shutdown()
    server.server_close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("call", ["list", "read", "apply", "delete", "remove", "run"])
def test_a_call_that_the_api_does_not_answer_has_a_deadline(cluster: Cluster, call: str) -> None:
    objects = FleetObjects(cluster)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "small"}}
    calls = {
        "list": lambda: cluster.pods("small"),
        "read": lambda: cluster.config_map("small"),
        "apply": lambda: objects.apply("small", [secret]),
        "delete": lambda: cluster.delete_pod("small"),
        "remove": lambda: objects.remove_all("small", [("v1", "Secret")]),
        "run": lambda: list(execute(cluster, "pod-1", "ps", ["tar"])),
    }
    with pytest.raises(LostPeerError, match="Kubernetes does not answer"):
        calls[call]()


@pytest.mark.timeout(30)
def test_a_command_that_is_not_opened_leaves_the_other_calls_as_they_are(cluster: Cluster) -> None:
    """The package replaces a method of its client until the connection is open, and its thread is abandoned."""
    with pytest.raises(LostPeerError):
        list(execute(cluster, "pod-1", "ps", ["tar"]))
    assert "call_api" not in vars(cluster.api)
    with pytest.raises(LostPeerError, match="delete pod small"):
        cluster.delete_pod("small")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("follow", [False, True])
def test_a_log_whose_connection_is_dead_ends_with_what_came(cluster: Cluster, follow: bool) -> None:
    assert list(cluster.log("pod-1", "ps", follow=follow)) == ["first"]


class Reply:
    """A command's reply: frames, each the text of a channel or an error, then the end."""

    def __init__(self, *frames: tuple[int, bytes] | Exception) -> None:
        self._frames = list(frames)
        self._channels: dict[int, bytes] = {}
        self.is_closed = False

    def update(self, timeout: float = 0) -> None:
        """See WSClient."""
        frame = self._frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        self._channels[frame[0]] = frame[1]

    def is_open(self) -> bool:
        """See WSClient."""
        return bool(self._frames)

    def read_channel(self, channel: int) -> bytes:
        """See WSClient."""
        return self._channels.pop(channel, b"")

    def peek_stdout(self) -> bytes:
        """See WSClient."""
        return self._channels.get(STDOUT_CHANNEL, b"")

    def peek_stderr(self) -> bytes:
        """See WSClient."""
        return self._channels.get(STDERR_CHANNEL, b"")

    def read_stdout(self) -> bytes:
        """See WSClient."""
        return self.read_channel(STDOUT_CHANNEL)

    def read_stderr(self) -> bytes:
        """See WSClient."""
        return self.read_channel(STDERR_CHANNEL)

    def close(self) -> None:
        """See WSClient."""
        self.is_closed = True


@contextmanager
def replied(monkeypatch: pytest.MonkeyPatch, *frames: tuple[int, bytes] | Exception) -> Iterator[Iterator[bytes]]:
    """The output of `tar -c` in pod-1 with this reply, which must be closed in the end."""
    reply = Reply(*frames)

    def stream(*arguments: Any, container: str, **options: Any) -> Reply:
        assert container == "results", "others may be in the pod"
        return reply

    monkeypatch.setattr(pod_exec, "stream", stream)

    class Pods:
        namespace = "here"
        api = SimpleNamespace(configuration=None)

    yield execute(Pods(), "pod-1", "results", ["tar", "-c"])  # type: ignore[arg-type]
    assert reply.is_closed


def verdict(**content: Any) -> tuple[int, bytes]:
    """The last frame of a command that ended by itself."""
    return ERROR_CHANNEL, json.dumps(content).encode()


def test_a_command_that_succeeds_returns_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [(STDOUT_CHANNEL, b"a"), (STDERR_CHANNEL, b"note"), (STDOUT_CHANNEL, b"b"), verdict(status="Success")]
    with replied(monkeypatch, *frames) as output:
        assert list(output) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([(STDERR_CHANNEL, b"no\nspace"), verdict(status="Failure", message="exit code 2")], "no space"),
        ([verdict(status="Failure", message="exit code 2")], "exit code 2"),
        ([], "the connection broke"),
    ],
    ids=["said", "silent", "no verdict"],
)
def test_a_command_that_fails_or_has_no_verdict_is_no_success(
    frames: Sequence[tuple[int, bytes]], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replied(monkeypatch, (STDOUT_CHANNEL, b"part"), *frames) as output:
        assert next(output) == b"part"
        with pytest.raises(LostPeerError, match=f"^tar -c in pod pod-1: {problem}$"):
            next(output)


def test_a_connection_that_breaks_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        replied(monkeypatch, WebSocketConnectionClosedException("connection lost")) as output,
        pytest.raises(LostPeerError, match=r"Kubernetes does not answer \(run tar in pod pod-1\): connection lost"),
    ):
        list(output)


def test_a_command_that_prints_nothing_for_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_exec, "SILENT_SECS", -1.0)
    with (
        replied(monkeypatch, verdict(), verdict()) as output,
        pytest.raises(LostPeerError, match="tar in pod pod-1 printed nothing for -1 s"),
    ):
        list(output)


def test_an_api_that_refuses_is_an_error_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = api.ApiException(status=403, reason="Forbidden")
    with replied(monkeypatch, refusal) as output, pytest.raises(UsageError, match="run tar in pod pod-1: 403 Forbidd"):
        list(output)
