"""Two hosts as network namespaces of this machine, joined by one cable; needs root and iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from psfleet.processes.command import Process
from support.commands import started

COMMAND_SECS = 20.0


@dataclass(frozen=True)
class Host:
    """A network namespace with loopback and one interface.

    Attributes:
        name: Of the namespace, in /run/netns.
        ip: The address on the cable.
    """

    name: str
    ip: str

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs another one on this host."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *arguments]

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
        done = subprocess.run(self.command(sys.executable, "-c", probe), capture_output=True, timeout=COMMAND_SECS)
        return done.returncode == 0


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Makes two hosts; skips the test where that is not possible."""
    missing = [program for program in ("ip", "nsenter") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"hosts as network namespaces need {' and '.join(missing)} (iproute2, util-linux)")
    if os.geteuid() != 0:
        pytest.skip("hosts as network namespaces need root")
    unique = secrets.token_hex(3)
    hosts = tuple(Host(f"psfleet-{unique}-{side}", f"10.213.0.{number}") for number, side in enumerate("ab", 1))
    with ExitStack() as stack:
        for host in hosts:
            made = _ip("netns", "add", host.name)
            if made.returncode != 0:
                pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "delete", host.name)
        first, second = hosts
        _require("link", "add", "cable", "netns", first.name, "type", "veth", "peer", "cable", "netns", second.name)
        for host in hosts:
            _require("-n", host.name, "address", "add", f"{host.ip}/24", "dev", "cable")
            _require("-n", host.name, "link", "set", "cable", "up")
            _require("-n", host.name, "link", "set", "lo", "up")
        yield first, second


def _require(*arguments: str) -> None:
    done = _ip(*arguments)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_SECS)
