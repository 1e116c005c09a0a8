"""A service under test: `psfleet serve` as a command, and a client of its REST front."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from psfleet.polling import wait_until
from psfleet.processes.command import Process
from psfleet.processes.ports import free_addresses
from psfleet.service.logs import parse_line
from support import commands

READY_SECS = 90.0
"""Until a service is ready, or ready again; about 3 on an idle machine."""


@dataclass
class Served:
    """A service that runs.

    Attributes:
        folder: Of its logs.
        rest_port: Of REST.
        grpc_port: Of gRPC.
        process: The command.
        num_members: Of the service.
        probe: A query that has an answer.
        model: Its name.
    """

    folder: Path
    rest_port: int
    grpc_port: int
    process: Process
    num_members: int
    screen: Path = field(repr=False)
    probe: Mapping[str, Any] = field(repr=False)
    model: str

    def client(self) -> RestClient:
        """A client with a connection of its own."""
        return RestClient(self.rest_port)

    def pid(self, role: str, index: int = 0) -> int:
        """The process id of the newest process of a role."""
        lines = (self.folder / "logs" / f"{role}-{index}.log").read_bytes().splitlines()
        return next(entry["pid"] for line in reversed(lines) if (entry := parse_line(line)) and "pid" in entry)

    def await_members(self, members: str, secs: float = READY_SECS) -> None:
        """Waits until answers are made of so many members."""
        with self.client() as client:
            wait_until(
                lambda: client.status_and_content("POST", f"/v2/models/{self.model}/infer", self.probe), secs,
                f"answers of {members}", done=lambda found: found[1].get("parameters") == {"members": members},
            )  # fmt: skip

    def await_joins(self, number: int) -> None:
        """Waits until so many members have joined the front."""
        log = self.folder / "logs" / "front-0.log"
        wait_until(
            lambda: len({entry["member"] for entry in map(parse_line, log.read_bytes().splitlines())
                         if entry and entry.get("event") == "member"}),
            READY_SECS, f"{number} members", done=lambda joined: joined == number,
        )  # fmt: skip

    def await_ready(self, number: int, metrics_port: int) -> None:
        """Waits until so many members would be asked."""
        wait_until(
            lambda: [line.split()[-1] for line in self.metrics(metrics_port).splitlines()
                     if line.startswith("psfleet_members_ready")],
            READY_SECS, f"{number} members that take queries", done=[f"{number}.0"].__eq__,
        )  # fmt: skip

    def await_version(self, version: str) -> None:
        """Waits until answers are of a version."""
        with self.client() as client:
            wait_until(
                lambda: client.infer([[0, 0]])[1]["model_version"], READY_SECS, f"version {version}",
                done=lambda found: found == version,
            )  # fmt: skip

    def metrics(self, port: int) -> str:
        """The page for Prometheus."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


class RestClient:
    """A context manager with one connection; of one thread.

    Args of the constructor:
        headers: Of each request.
    """

    def __init__(self, port: int, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = headers

    def status_and_content(
        self, method: str, path: str, content: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of an answer."""
        self.send(method, path, content, headers)
        return self.receive()

    def send(self, method: str, path: str, content: object = None, headers: dict[str, str] | None = None) -> None:
        """Sends a request, whose answer `receive` returns."""
        body = content if isinstance(content, bytes) else None if content is None else json.dumps(content).encode()
        self._connection.request(method, path, body, {**self._headers, **(headers or {})})

    def receive(self) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of the answer to the request that was sent."""
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def infer(self, rows: Any, model: str = "net") -> tuple[np.ndarray, dict[str, Any]]:
        """The output for some rows, and the answer."""
        status, content = self.status_and_content("POST", f"/v2/models/{model}/infer", query(rows))
        assert status == 200, content
        (output,) = content["outputs"]
        return np.array(output["data"], np.float32).reshape(output["shape"]), content

    def __enter__(self) -> RestClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()


def query(rows: Any, datatype: str = "FP32", name: str = "input_0") -> dict[str, Any]:
    """A query of one input."""
    found = np.asarray(rows, np.float32)
    return {
        "id": "7",
        "inputs": [{"name": name, "datatype": datatype, "shape": list(found.shape), "data": found.ravel().tolist()}],
    }


@contextmanager
def serving(
    folder: Path,
    runs: Sequence[Path | str],
    *options: str,
    num_members: int = 0,
    probe: Mapping[str, Any] | None = None,
    model: str = "net",
) -> Iterator[Served]:
    """Serves runs during the block, ready at its start; the command ends by SIGTERM."""
    (address,) = free_addresses(1)
    screen = folder / "screen"
    screen.touch()
    process = commands.started(
        "psfleet", "serve", *map(str, runs), "--out", "service", "--rest-port", str(address.port),
        "--grpc-port", str(address.control_port), *options, folder=folder, out=screen, err=screen,
    )  # fmt: skip
    served = Served(
        folder / "service", address.port, address.control_port, process, num_members or len(runs), screen,
        probe or query([[0, 0]]), model,
    )  # fmt: skip
    try:
        wait_until(lambda: "is ready" in screen.read_text() or process.poll() is not None, READY_SECS, "the service")
        assert process.poll() is None, screen.read_text()
        served.await_members(f"{served.num_members} of {served.num_members}")
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        wait_until(process.poll, READY_SECS, "the end of the service", done=lambda code: code is not None)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still wait for its parent."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def freeze(pid: int) -> None:
    """Stops a process until it is continued."""
    os.kill(pid, signal.SIGSTOP)
