"""Addresses of the fleet: the generated ClusterSpec, and TF_CONFIG in and out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psfleet.errors import BadJobError, UsageError
from psfleet.job.fields import split_address
from psfleet.job.job import Job

DATA_PORT = 2222
"""TensorFlow's port in a container."""
CONTROL_OFFSET, METRICS_OFFSET, TUNNEL_OFFSET = 1, 2, 3
"""Distances of a task's other ports from TensorFlow's port."""
BATCHES_OFFSET = 4
"""Of a loader, distance of the port of its batches from that of its dispatcher."""
EXCHANGE_OFFSET = 4
"""Of a ps, distance of the port on which it exchanges gradients for parameters; on loopback it takes any free one."""
LOOPBACK = "127.0.0.1"
LOCAL_PORTS = {"ps": range(20000, 21000), "worker": range(21000, 31000), "client": range(31000, 32768)}
"""With TLS: the loopback ports of each ps, and of each plain worker and client of a standing fleet, by index; the same
in all containers. They lie below 32768, where Linux's ports for outgoing connections begin."""
RUN_PORTS = range(20000, 32768)
"""With TLS: the ports of workers of runs, at addresses of loopback other than 127.0.0.1 (see `run_address`)."""
LOADER_HOST, LOADER_PORTS = "127.0.0.2", range(20000, 30000)
"""With TLS: the address of loopback at which loaders are reached, and their ports, two for each."""

CHIEFS = ("chief", "master")
"""Types of a task in TF_CONFIG that psfleet calls worker 0; the workers beside it are counted from 1."""


@dataclass(frozen=True)
class Address:
    """Where a task listens: TensorFlow on `port`, its control plane, metrics and TLS tunnel on the next three ports."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses `host:port`.

        Raises:
            BadJobError: The text is not `host:port` with a port below 65532.
        """
        parts = split_address(text)
        if parts is None:
            raise BadJobError(f"address {text!r}: expected host:port with port below 65532")
        return cls(*parts)

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can reach it."""
        return self.host in (LOOPBACK, "localhost")

    @property
    def loopback_host(self) -> str:
        """The host as an address of 127.0.0.0/8; empty if it is no address of loopback."""
        if self.host == "localhost":
            return LOOPBACK
        return self.host if re.fullmatch(r"127(\.\d{1,3}){3}", self.host) else ""

    @property
    def data(self) -> str:
        """`host:port` of TensorFlow."""
        return f"{self.host}:{self.port}"

    @property
    def control(self) -> str:
        """`host:port` of the control plane."""
        return f"{self.host}:{self.control_port}"

    @property
    def control_port(self) -> int:
        """Port of the control plane."""
        return self.port + CONTROL_OFFSET

    @property
    def batches(self) -> Address:
        """Where a loader in a container gives its batches."""
        return Address(self.host, self.port + BATCHES_OFFSET)

    @property
    def exchange_port(self) -> int:
        """Port of a ps for exchanges, if it is not on loopback."""
        return self.port + EXCHANGE_OFFSET

    @property
    def tunnel(self) -> str:
        """`host:port` of the tunnel to TensorFlow."""
        return f"{self.host}:{self.tunnel_port}"

    @property
    def tunnel_port(self) -> int:
        """Port of the tunnel to TensorFlow."""
        return self.port + TUNNEL_OFFSET


def local_address(role: str, index: int) -> Address:
    """The loopback address of a task's TensorFlow with TLS, the same in every container.

    In the task's own container TensorFlow listens there, in all others a tunnel to it.

    Raises:
        BadJobError: `LOCAL_PORTS` has no port for the index.
    """
    ports = LOCAL_PORTS[role]
    if not 0 <= index < len(ports):
        raise BadJobError(f"{role} {index}: with tls, expected an index from 0 to {len(ports) - 1}")
    return Address(LOOPBACK, ports[index])


def run_address(run: str, worker: int) -> Address:
    """As `local_address`, of a worker of a run: in 127.0.0.0/8 outside of 127.0.0.0/16.

    The ps of a standing fleet serve the workers of many runs, whose addresses must differ. The address is a digest of
    run and index, so that each container can compute it: two of 1,000 workers share one with a probability of 3e-6.
    """
    digest = hashlib.sha256(f"{run}/{worker}".encode()).digest()
    host = f"127.{1 + digest[0] % 254}.{digest[1]}.{1 + digest[2] % 254}"
    return Address(host, RUN_PORTS[int.from_bytes(digest[3:7], "big") % len(RUN_PORTS)])


def loader_ports(index: int) -> tuple[Address, Address]:
    """As `local_address`, of a loader: of its dispatcher, and of its batches.

    Raises:
        BadJobError: `LOADER_PORTS` has no ports for the index.
    """
    if not 0 <= 2 * index < len(LOADER_PORTS):
        raise BadJobError(f"loader {index}: with tls, expected an index from 0 to {len(LOADER_PORTS) // 2 - 1}")
    dispatcher, batches = LOADER_PORTS[2 * index : 2 * index + 2]
    return Address(LOADER_HOST, dispatcher), Address(LOADER_HOST, batches)


def num_own_ps(job: Job) -> int:
    """The number of processes that are only a ps: 0 if workers are, or if the job names running ps."""
    return 0 if job.fleet.colocate or job.fleet.ps_addresses is not None else job.fleet.ps


def ps_addresses(job: Job, own: Sequence[Address], workers: Sequence[Address]) -> list[Address]:
    """The addresses of a fleet's ps: `fleet.ps_addresses`, those of the workers with `fleet.colocate`, or else `own`.

    Args:
        own: The addresses of the processes that are only a ps (see `num_own_ps`).
        workers: The addresses of the workers by index.

    Raises:
        BadJobError: An address is invalid, or their number is not `fleet.ps`.
    """
    named = job.fleet.ps_addresses
    started = workers if job.fleet.colocate else own
    ps = list(started) if named is None else [Address.parse(text) for text in named]
    if len(ps) != job.fleet.ps:
        raise BadJobError(f"the fleet has {len(ps)} ps addresses, expected fleet.ps = {job.fleet.ps}")
    return ps


def container_addresses(job: Job) -> tuple[list[Address], list[Address]]:
    """The addresses of the ps, and of the workers with spares, on a container network: hosts `ps-0`, `worker-0`, …"""
    ps = [Address(f"ps-{index}", DATA_PORT) for index in range(num_own_ps(job))]
    workers = [Address(f"worker-{index}", DATA_PORT) for index in range(job.fleet.processes)]
    return ps_addresses(job, ps, workers), workers


def loader_addresses(job: Job) -> list[Address]:
    """The addresses of the loaders on a container network, and of those that `psfleet scale` can add.

    Their hosts have the job's name, since runs on a standing fleet share its network.
    """
    return [Address(f"{job.name}-loader-{index}", DATA_PORT) for index in range(job.most_loaders)]


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


@dataclass(frozen=True)
class TfConfig:
    """A TF_CONFIG, with the task as psfleet counts: TensorFlow's `chief`, or `master`, is worker 0.

    Attributes:
        ps: Addresses of the ps; none in the TF_CONFIG of a tool that has no ps.
        role: ps or worker; empty if the type of the task is missing.
        index: Index of this task; None if it is missing.
        address: Address of this task; None if the cluster does not name it.
    """

    ps: tuple[Address, ...]
    role: str = ""
    index: int | None = None
    address: Address | None = None


def parse_tf_config(text: str) -> TfConfig:
    """Parses a TF_CONFIG. Of the workers' addresses only that of this task is read.

    Raises:
        BadJobError: The text is not a TF_CONFIG, or names a task that psfleet does not have.
    """
    try:
        content = json.loads(text)
        cluster: Mapping[str, Any] = content["cluster"]
        task: Mapping[str, Any] = content.get("task", {})
        kind, number = task.get("type", ""), task.get("index")
        if "ps" not in cluster:
            return TfConfig(())
        ps = tuple(Address.parse(at) for at in cluster["ps"])
        index = None if number is None else _task_index(number)
        members = cluster.get(kind, ())
        has_address = index is not None and 0 <= index < len(members)
        address = Address.parse(members[index]) if has_address else None
    except BadJobError as error:
        raise BadJobError(f"TF_CONFIG: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadJobError("TF_CONFIG is not JSON with cluster.ps and task") from error
    if kind not in ("", "ps", "worker", *CHIEFS):
        raise BadJobError(f"TF_CONFIG: task type is {kind!r}, expected ps, worker or chief")
    if index is not None and (index < 0 or (kind in CHIEFS and index)):
        expected = "0" if kind in CHIEFS else "a whole number from 0"
        raise BadJobError(f"TF_CONFIG: task index of {kind} is {index}, expected {expected}")
    if kind == "worker" and index is not None and any(name in cluster for name in CHIEFS):
        index += 1
    return TfConfig(ps, "worker" if kind in CHIEFS else kind, index, address)


def _task_index(value: object) -> int:
    if not re.fullmatch(r"-?\d+", str(value)):
        raise BadJobError(f"task index is {value!r}, expected a whole number")
    return int(str(value))
