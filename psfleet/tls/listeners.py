"""Local addresses on which a TCP port is listening: in the whole network namespace, or sockets of this process."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path

LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""
LOOPBACK_HOST = re.compile(r"(0{16}FFFF0000)?[0-9A-F]{6}7F|0{24}01000000")
"""127.0.0.0/8, the same as ::ffff:127.x.y.z, and ::1 as /proc/net/tcp writes them on little-endian machines."""


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
    return bool(hosts) and all(map(LOOPBACK_HOST.fullmatch, hosts))


def is_taken(address: str) -> bool:
    """Whether a socket of this network namespace listens at `host:port`, an IPv4 address of this machine."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        # With this option, only a socket that listens is in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def process_listens_on_loopback_alone(port: int) -> bool:
    """Whether sockets of this process listen on a port, all of them on loopback; False where there is no /proc.

    For /proc/net/tcp the kernel walks through the connections of the whole machine: 40 ms, which each process would
    spend at its start.
    """
    hosts = _own_hosts(port)
    return bool(hosts) and all(map(_is_loopback, hosts))


def process_listens_on(port: int, host: str) -> bool:
    """Whether sockets of this process listen on a port, all of them on one IPv4 address."""
    return _own_hosts(port) in ({host}, {f"::ffff:{host}"})


def _own_hosts(port: int) -> set[str]:
    """Addresses on which sockets of this process listen on a TCP port."""
    hosts = set()
    for descriptor in _descriptors():
        # Another thread may have closed it by now.
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host, own_port, *_ = copy.getsockname()
                if own_port == port and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    hosts.add(host)
    return hosts


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except FileNotFoundError:
        return []


def _is_loopback(host: str) -> bool:
    """Whether an address is of loopback; ::ffff:127.0.0.1 is, too."""
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
