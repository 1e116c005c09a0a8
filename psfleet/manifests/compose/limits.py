"""Resource limits and GPUs of a container, as docker compose and the engine's API write them."""

from __future__ import annotations

from typing import Any

from psfleet.job.container import Limits, WorkerLimits, num_bytes

NANO = 10**9
"""The engine's unit of a CPU limit."""
ALL = -1
"""The engine's number of GPUs for all of its host."""


def limited(limits: Limits) -> dict[str, Any]:
    """A service's limits, and its GPUs; it gets no swap beyond its memory."""
    memory = limits.memory.lower().removesuffix("i")
    service: dict[str, Any] = {"mem_limit": memory, "memswap_limit": memory, "pids_limit": limits.pids}
    if limits.cpus is not None:
        service["cpus"] = limits.cpus
    if _has_gpus(limits):
        devices = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [devices]}}}
    return service


def limit_options(limits: Limits) -> dict[str, Any]:
    """The same as arguments of `docker.containers.create`."""
    memory = num_bytes(limits.memory)
    options: dict[str, Any] = {"mem_limit": memory, "memswap_limit": memory, "pids_limit": limits.pids}
    if limits.cpus is not None:
        options["nano_cpus"] = int(limits.cpus * NANO)
    if _has_gpus(limits):
        options["device_requests"] = [{"driver": "nvidia", "count": ALL, "capabilities": [["gpu"]]}]
    return options


def _has_gpus(limits: Limits) -> bool:
    return isinstance(limits, WorkerLimits) and limits.gpus
