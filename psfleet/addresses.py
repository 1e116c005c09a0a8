"""Addresses of the fleet: the generated ClusterSpec, and TF_CONFIG in and out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job

DATA_PORT = 2222
"""TensorFlow's port in a container. The control plane's port is always the one after."""
LOOPBACK = "127.0.0.1"
LOCAL_PORTS = {"ps": range(20000, 21000), "worker": range(21000, 32768)}
"""With TLS: the port of each ps and worker by its index, the same in all containers, where only loopback reaches it.
They end where Linux begins to give ports to outgoing connections."""


@dataclass(frozen=True)
class Address:
    """Where a task listens: TensorFlow on `port`, control plane, metrics and TLS tunnel on the three after it."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `host:port`.

        Raises:
            BadJobError: It is not.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65535:
            raise BadJobError(f"address {text!r}: expected host:port with port below 65535")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine are to reach it."""
        return self.host in (LOOPBACK, "localhost")

    @property
    def data(self) -> str:
        """`host:port` of TensorFlow."""
        return f"{self.host}:{self.port}"

    @property
    def control(self) -> str:
        """`host:port` of the control plane."""
        return f"{self.host}:{self.port + 1}"

    @property
    def tunnel(self) -> str:
        """`host:port` of the tunnel to TensorFlow."""
        return f"{self.host}:{self.port + 3}"


def local_address(role: str, index: int) -> Address:
    """Where a task's TensorFlow is found in every container of a fleet with TLS: a tunnel leads there.

    Raises:
        BadJobError: The index has no port.
    """
    ports = LOCAL_PORTS[role]
    if not 0 <= index < len(ports):
        raise BadJobError(f"{role} {index}: with tls, expected an index from 0 to {len(ports) - 1}")
    return Address(LOOPBACK, ports[index])


def num_own_ps(job: Job) -> int:
    """The number of ps that a launcher starts: none if the job names ps that run already."""
    return job.fleet.ps if job.fleet.ps_addresses is None else 0


def ps_addresses(job: Job, own: Sequence[Address]) -> list[Address]:
    """The ps of a fleet: those that run already, or else the launcher's own.

    Args:
        own: The addresses of as many ps as the launcher starts.

    Raises:
        BadJobError: An address is not one, or there are more or fewer than `fleet.ps`.
    """
    found = list(own) if job.fleet.ps_addresses is None else [Address.parse(at) for at in job.fleet.ps_addresses]
    if len(found) != job.fleet.ps:
        raise BadJobError(f"the fleet has {len(found)} ps addresses, expected fleet.ps = {job.fleet.ps}")
    return found


def container_addresses(job: Job) -> tuple[list[Address], list[Address]]:
    """The ps and the workers (with spares) under their names on a container network."""
    ps = ps_addresses(job, [Address(f"ps-{index}", DATA_PORT) for index in range(num_own_ps(job))])
    return ps, [Address(f"worker-{index}", DATA_PORT) for index in range(job.fleet.replicas)]


def tf_config(job: Job, task: str | None) -> dict[str, Any]:
    """TF_CONFIG of a task (`ps:0`, `worker:1`), or only its cluster.

    Raises:
        UsageError: There is no such task.
    """
    ps, workers = container_addresses(job)
    cluster = {"ps": [at.data for at in ps], "worker": [at.data for at in workers]}
    if task is None:
        return {"cluster": cluster}
    role, _, index = task.partition(":")
    if role not in cluster or not index.isdecimal() or int(index) >= len(cluster[role]):
        known = ", ".join(f"{name}:0 to {name}:{len(members) - 1}" for name, members in cluster.items())
        raise UsageError(f"--task {task!r}: expected one of {known}")
    return {"cluster": cluster, "task": {"type": role, "index": int(index)}}


def parse_tf_config(text: str) -> tuple[list[Address], str | None, int | None]:
    """The ps addresses, and the role and index of this task, out of a TF_CONFIG.

    Raises:
        BadJobError: The text is no TF_CONFIG.
    """
    try:
        content = json.loads(text)
        ps: Sequence[str] = content["cluster"]["ps"]
        task = content.get("task", {})
        return [Address.parse(at) for at in ps], task.get("type"), task.get("index")
    except BadJobError as error:
        raise BadJobError(f"TF_CONFIG: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadJobError("TF_CONFIG is not JSON with cluster.ps and task") from error
