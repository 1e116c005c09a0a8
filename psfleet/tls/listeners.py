"""Local addresses on which a TCP port is listening, from /proc/net/tcp."""

from __future__ import annotations

from pathlib import Path

LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""
LOOPBACK_HOSTS = frozenset({"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"})
"""127.0.0.1, ::ffff:127.0.0.1 and ::1 as /proc/net/tcp writes them on little-endian machines."""


def listeners(port: int) -> set[str]:
    """Local addresses, in the kernel's hexadecimal notation, on which a TCP port of this network namespace listens."""
    hosts = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            host, _, own_port = local.partition(":")
            if state == LISTEN and int(own_port, 16) == port:
                hosts.add(host)
    return hosts


def is_on_loopback_alone(port: int) -> bool:
    """Whether a port listens, and only on loopback."""
    hosts = listeners(port)
    return bool(hosts) and not hosts - LOOPBACK_HOSTS
