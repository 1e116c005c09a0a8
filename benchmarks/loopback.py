"""A network namespace of a benchmark's own, whose loopback device counts the bytes of its processes.

Needs Linux, root, `unshare` and `ip`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

INSIDE = "PSFLEET_BENCHMARK_NAMESPACE"
"""Environment variable of the process in the namespace: the inode of the network namespace before."""
NETWORK = Path("/proc/self/ns/net")
COUNTERS = Path("/proc/net/dev")


def enter_namespace(module: str, arguments: Sequence[str]) -> None:
    """Starts a module again in a network namespace of its own, unless it runs in one."""
    network = os.readlink(NETWORK)
    if os.environ.get(INSIDE, network) != network:
        return
    os.environ[INSIDE] = network
    again = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-m", module)
    try:
        os.execvp("unshare", ["unshare", "--net", *again, *arguments])
    except OSError as error:
        sys.exit(f"benchmark failed: {error}: expected unshare of util-linux")


def loopback_bytes() -> int:
    """Bytes that the loopback device of this namespace has received, headers included: each byte sent, once."""
    for line in COUNTERS.read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    sys.exit(f"benchmark failed: {COUNTERS} has no device lo")
