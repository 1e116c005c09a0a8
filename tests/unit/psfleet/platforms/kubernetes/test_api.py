"""The API's calls over a connection that breaks, or on which no answer comes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import kube_config

from psfleet.errors import LostPeerError
from psfleet.platforms.kubernetes import api
from psfleet.platforms.kubernetes import exec as pod_exec
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.exec import execute
from psfleet.platforms.kubernetes.objects import FleetObjects

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
