"""Hosts as network namespaces of this machine, each on a switch by a link of limited rate; needs root and iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.children import ChildError

PROGRAMS = ("ip", "tc", "nsenter")
COMMAND_SECS = 20.0
NETWORK = "10.213.1"
PORT = "eth0"
"""Name of each host's interface."""
BURST = "128k"
"""Of the shaper: twice the largest packet that Linux hands to a device (64 KiB), and 1 ms at 1 Gbit/s."""
FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448
"""Of a TCP segment with timestamps on Ethernet: what the shaper counts, and what it carries."""


@dataclass(frozen=True)
class Host:
    """A network namespace with loopback and one interface.

    Attributes:
        name: Of the namespace, in /run/netns.
        ip: Its address on the switch.
    """

    name: str
    ip: str

    def command(self, command: Sequence[str]) -> list[str]:
        """A command line that runs another one on this host."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]


def floor_ms(num_bytes: int, megabits: int) -> float:
    """How long a link is busy with some bytes that TCP carries in one direction, in milliseconds."""
    return num_bytes * FRAME_BYTES / PAYLOAD_BYTES * 8 / (megabits * 1e6) * 1000


def why_impossible() -> str | None:
    """One line if this machine has no such hosts, else None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not found, expected iproute2 and util-linux"
    if os.geteuid() != 0:
        return "the user is not root, expected root: hosts are network namespaces"
    try:
        with hosts(1, 1000):
            return None
    except ChildError as error:
        return str(error)


@contextmanager
def hosts(number: int, megabits: int) -> Iterator[list[Host]]:
    """Makes hosts whose links carry a number of Mbit/s in each direction.

    Raises:
        ChildError: A command failed.
    """
    unique = secrets.token_hex(3)
    switch = f"psfleet-{unique}-switch"
    made = [Host(f"psfleet-{unique}-{index}", f"{NETWORK}.{index + 1}") for index in range(number)]
    with ExitStack() as stack:
        for name in (switch, *(host.name for host in made)):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for index, host in enumerate(made):
            port = f"port{index}"
            _run("ip", "link", "add", PORT, "netns", host.name, "type", "veth", "peer", port, "netns", switch)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", host.name, "address", "add", f"{host.ip}/24", "dev", PORT)
            for device in (PORT, "lo"):
                _run("ip", "-n", host.name, "link", "set", device, "up")
            _shape(host.name, PORT, megabits)
            _shape(switch, port, megabits)
        yield made


def _shape(namespace: str, device: str, megabits: int) -> None:
    """Limits what a device sends."""
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
    limit = ("rate", f"{megabits}mbit", "burst", BURST, "cburst", BURST)
    _run("tc", "-n", namespace, "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", *limit)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECS)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{' '.join(command)}: no end after {COMMAND_SECS:g} s") from error
    if done.returncode != 0:
        raise ChildError(f"{' '.join(command)}: {done.stderr.strip()}")
