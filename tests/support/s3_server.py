"""An S3 server in a thread of the test, by moto; it refuses, delays or loses requests as the test wants."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from psfleet.checkpoint import store_client
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store import newest_committed

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
DENIED = ("403 Forbidden", "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
GONE = ("404 Not Found", "NoSuchBucket", "The specified bucket does not exist")
BROKEN = ("500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again.")

HOLD_SECS = 10.0
"""A test that fails must not leave a thread for ever."""

Fault = Callable[[str, str], tuple[str, str, str] | None]
"""Called with method and path of a request; returns status, code and message of a refusal, or None."""


def no_fault(method: str, path: str) -> None:
    """Lets every request pass."""


def hold(released: threading.Event) -> None:
    """Lets a request pass once the event is set."""
    released.wait(HOLD_SECS)


@dataclass
class S3Server:
    """A running server.

    Attributes:
        url: Its address.
        fault: Decides which requests fail; may wait.
        requests: Method and path with query of each request so far.
    """

    url: str = ""
    fault: Fault = no_fault
    requests: list[tuple[str, str]] = field(default_factory=list)

    def make_bucket(self, name: str) -> StoreFolder:
        """Creates a bucket."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=10.0):
            return StoreFolder(f"s3://{name}")

    def empty(self) -> None:
        """Removes all buckets: moto keeps those of all servers of this process."""
        with urllib.request.urlopen(f"{self.url}/moto-api/reset", data=b"", timeout=10.0):
            self.requests.clear()

    def application(self, app: Callable[..., Any]) -> Callable[..., Iterable[bytes]]:
        """A WSGI application that passes requests on to another one, unless a fault refuses them."""

        def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self.requests.append((method, f"{path}?{environ.get('QUERY_STRING', '')}"))
            refusal = self.fault(method, path)
            if refusal is None:
                return list(app(environ, start_response))
            # Before the answer: the client may still be sending.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, code, message = refusal
            start_response(status, [("Content-Type", "application/xml")])
            return [b"" if method == "HEAD" else ERROR.format(code=code, message=message).encode()]

        return call


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Runs an empty server on a free port, and ends it with the block; clients from before are forgotten.

    Args:
        host: The address that it listens on.
    """
    # Imported here: it takes a second, and modules import this one for its constants.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    store_client.file_system.cache_clear()
    server = S3Server()
    app = server.application(DomainDispatcherApplication(create_backend_app))
    http = make_server(host, 0, app, threaded=True)
    server.url = f"http://{host}:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, name="s3-server", daemon=True)
    thread.start()
    try:
        server.empty()
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join(10.0)
        store_client.file_system.cache_clear()


def environment(server: S3Server) -> dict[str, str]:
    """The variables by which a client finds the server, and no other credentials of this machine."""
    return {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tester",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_CONFIG_FILE": os.devnull,
    }


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the clients of this process and of its children find the server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)


def saved_step(store: str) -> int:
    """The step of the newest checkpoint in a store, as `s3://bucket/prefix`; 0: none after the initial one."""
    found = newest_committed(StoreFolder(f"{store}/checkpoints"))
    return 0 if found is None else found.step


def assert_not_stored(secret: str, folder: Path) -> None:
    """No file of a folder has a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
