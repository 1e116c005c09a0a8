"""A real ps or worker on its own: started, watched, called, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psfleet.addresses import Address
from psfleet.control.client import PsClient
from psfleet.polling import wait_until
from psfleet.processes.child import MODULES
from psfleet.processes.command import Process
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from psfleet.service.logs import parse_line
from support.commands import service

START_SECS = 60.0
"""Until a process answers, or has found out that it cannot; about 3 on an idle machine."""
END_SECS = 10.0
"""From the end of a run to the end of its ps."""


@dataclass(frozen=True)
class Service:
    """One `python -m ps_service` or `python -m worker_service`.

    Attributes:
        address: Where it listens; the control port is the next.
        output: What it prints.
    """

    process: Process
    address: Address
    output: Path

    def health(self) -> int | None:
        """What `grpc.health.v1.Health/Check` answers on the control port; None if it does not."""
        assert self.process.poll() is None, f"it ended with {self.process.poll()}: {self.output.read_text()}"
        with grpc.insecure_channel(self.address.control) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
            except grpc.RpcError:
                return None
        status: int = reply.status
        return status

    def serving(self) -> Service:
        """Waits until it is healthy."""
        is_serving = health_pb2.HealthCheckResponse.SERVING
        wait_until(self.health, START_SECS, f"health at {self.address.control}", done=lambda seen: seen == is_serving)
        return self

    def exit_code(self, timeout_secs: float) -> int:
        """Waits for its end."""
        what = f"the end of the service at {self.address.data}, which printed {self.output}"
        code = wait_until(self.process.poll, timeout_secs, what, done=lambda code: code is not None, poll_secs=0.02)
        assert code is not None
        return code

    def freeze(self, number: int = signal.SIGSTOP) -> None:
        """Freezes it with the processes that it has started; SIGCONT ends that."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in (*map(int, children.split()), self.process.pid):
            os.kill(pid, number)

    def child(self) -> int:
        """The process id of its only child."""
        (pid,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def entries(self) -> list[dict[str, Any]]:
        """Its log."""
        lines = self.output.read_bytes().splitlines()
        return [entry for entry in map(parse_line, lines) if entry is not None]

    def failures(self) -> list[dict[str, Any]]:
        """The log entries with which it failed: at most one."""
        return [entry for entry in self.entries() if entry.get("event") == "failed"]

    @contextmanager
    def client(self, run: str) -> Iterator[PsClient]:
        """Calls it for a run."""
        client = PsClient(self.address, run)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def running(
    role: str, folder: Path, address: Address | None = None, module: str = "", **environment: str
) -> Iterator[Service]:
    """Starts a service with a log in `folder`, and kills it at the end of the block.

    Args:
        role: ps or worker; names the log.
        module: That is run; empty: that of the role.
        environment: More of its settings, by the names of `psfleet.service.settings`: `RUN`, `INDEX`, ….
    """
    address = address or free_addresses(1)[0]
    own = {settings.ADDRESS: address.data, settings.OUT: str(folder), settings.PARENT: str(os.getpid())}
    own |= {getattr(settings, name): value for name, value in environment.items()}
    output = folder / f"{role}-{address.port}.txt"
    process = service(module or MODULES[role], own, output, is_alone="PARENT" in environment)
    try:
        yield Service(process, address, output)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
