"""How many CPU cores this process may use: those that it is scheduled on, or its container's limit if that is less."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where a container finds its own limits."""
QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Files that hold the microseconds of CPU time in each period, and the period: of cgroup v2, of v1.

See cgroup-v2.rst and sched-bwc.rst of the kernel's documentation. "max" and -1 stand for no limit.
"""


def cpu_limit(cgroup: Path = CGROUP) -> float:
    """Cores by the container's limit; infinite where there is none."""
    for names in QUOTAS:
        with suppress(OSError, ValueError):
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
            return int(quota) / int(period) if quota.isdecimal() else math.inf
    return math.inf


def num_cores(cgroup: Path = CGROUP) -> float:
    """Cores that this process may use."""
    return min(cpu_limit(cgroup), len(os.sched_getaffinity(0)))


def num_threads(cgroup: Path = CGROUP) -> int:
    """Threads that fit a container's limit; 0 where it limits nothing.

    TensorFlow's own default is a thread for each core that the process is scheduled on, whatever the limit is. So many
    use up the container's time early in a period, and then all wait for its end.
    """
    limit = cpu_limit(cgroup)
    return math.ceil(limit) if limit < len(os.sched_getaffinity(0)) else 0
