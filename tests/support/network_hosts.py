"""Two hosts as network namespaces of this machine, joined by one cable; needs root and iproute2."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks import namespaces
from benchmarks.children import ChildError
from psfleet.processes.command import Process
from support.commands import started

CABLE = "cable"
"""Name of each host's interface."""


class Host(namespaces.Host):
    """A network namespace that runs commands under test."""

    @contextmanager
    def runs(self, log: Path, folder: Path, *arguments: str) -> Iterator[Process]:
        """Starts `psfleet` with arguments, and forks the service that it becomes; kills it at the end of the block."""
        network = Path("/run/netns", self.name)
        process = started("psfleet", *arguments, folder=folder, out=log, err=log, network=network, stays=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def reaches(self, ip: str, port: int) -> bool:
        """Whether a connection from this host to a port is accepted."""
        probe = f"import socket; socket.create_connection(({ip!r}, {port}), 5)"
        command = self.command([sys.executable, "-c", probe])
        return subprocess.run(command, capture_output=True, timeout=namespaces.COMMAND_SECS).returncode == 0


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Makes two hosts; skips the test where that is not possible."""
    reason = namespaces.why_impossible()
    if reason is not None:
        pytest.skip(reason)
    unique = secrets.token_hex(3)
    first, second = (Host(f"psfleet-{unique}-{side}", f"10.213.0.{number}") for number, side in enumerate("ab", 1))
    with ExitStack() as stack:
        try:
            stack.enter_context(namespaces.namespaces([first.name, second.name]))
        except ChildError as error:
            pytest.skip(f"network namespaces are not permitted here: {error}")
        cable = ("type", "veth", "peer", CABLE, "netns", second.name)
        namespaces.execute("ip", "link", "add", CABLE, "netns", first.name, *cable)
        for host in (first, second):
            host.set_up(CABLE)
        yield first, second
