"""Facts about the machine and the software of a measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks.peers.starting import version
from psfleet.service.cpu import num_usable_cpus

CPU_INFO = Path("/proc/cpuinfo")


def machine_facts(environments: Iterable[str] = ()) -> dict[str, str]:
    """Machine, versions and time; the load is the mean number of running processes of the last minute.

    Args:
        environments: Those of peers, whose versions are included.
    """
    tensorflow = metadata.packages_distributions()["tensorflow"][0]
    return {
        "cpus": str(num_usable_cpus()),
        "cpu": cpu_model(),
        "load": load(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": metadata.version(tensorflow),
        **{environment: version(environment) for environment in environments},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def load() -> str:
    """The load of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def cpu_model() -> str:
    """The name of the processor; that of its architecture where Linux does not say it."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
