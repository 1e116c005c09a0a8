"""Hosts as network namespaces of this machine, each on a switch by a link of limited rate; needs root and iproute2."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import namespaces
from benchmarks.children import ChildError
from benchmarks.namespaces import Host, execute

NETWORK = "10.213.1"
PORT = "eth0"
"""Name of each host's interface."""
BURST = "128k"
"""Of the shaper: twice the largest packet that Linux hands to a device (64 KiB), and 1 ms at 1 Gbit/s."""
QUEUE = "1mb"
"""Of each direction of a link, like the buffer of a switch: a packet that finds it full is lost."""
CONGESTION_CONTROL = "cubic"
"""Of all connections: Linux's default, whatever this machine has."""
FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448
"""Of a TCP segment with timestamps on Ethernet: what the shaper counts, and what it carries."""


def floor_ms(num_bytes: int, megabits: int) -> float:
    """How long a link is busy with some bytes that TCP carries in one direction, in milliseconds."""
    return num_bytes * FRAME_BYTES / PAYLOAD_BYTES * 8 / (megabits * 1e6) * 1000


def why_impossible() -> str | None:
    """One line if this machine has no such hosts, else None."""
    reason = namespaces.why_impossible("tc")
    if reason is not None:
        return reason
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
    with namespaces.namespaces([switch, *(host.name for host in made)]):
        execute("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        execute("ip", "-n", switch, "link", "set", "bridge", "up")
        for index, host in enumerate(made):
            port = f"port{index}"
            execute("ip", "link", "add", PORT, "netns", host.name, "type", "veth", "peer", port, "netns", switch)
            execute("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            host.set_up(PORT)
            route = ("dev", PORT, "proto", "kernel", "scope", "link", "src", host.ip)
            execute("ip", "-n", host.name, "route", "change", f"{NETWORK}.0/24", *route, "congctl", CONGESTION_CONTROL)
            _shape(host.name, PORT, megabits)
            _shape(switch, port, megabits)
        yield made


def _shape(namespace: str, device: str, megabits: int) -> None:
    """Limits what a device sends, and what waits there."""
    execute("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
    limit = ("rate", f"{megabits}mbit", "burst", BURST, "cburst", BURST)
    execute("tc", "-n", namespace, "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", *limit)
    execute("tc", "-n", namespace, "qdisc", "add", "dev", device, "parent", "1:1", "bfifo", "limit", QUEUE)
