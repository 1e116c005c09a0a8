"""One process of a fleet that no launcher starts: its role, index and addresses, and the environment of its service."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from psfleet.addresses import CONTROL_OFFSET, EXCHANGE_OFFSET, TUNNEL_OFFSET, Address, TfConfig
from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.processes.own_host import own_host
from psfleet.service import process_environment, settings

WORKER_PORT, WORKER_STRIDE = 2300, 5
"""TensorFlow's port of worker 0 if none is given, and the distance to the next worker's: several may share a host."""
ROLES = ("ps", "worker")

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """What the command line says of a task; None: TF_CONFIG, the job or a default does.

    Attributes:
        role: ps or worker.
        index: Within the role; the chief is worker 0.
        ps: `HOST:PORT,...`: addresses of all ps by index.
        address: `HOST:PORT` at which the ps reach a worker.
    """

    role: str | None = None
    index: int | None = None
    ps: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class HostTask:
    """A ps or worker, with the addresses of all ps and its own."""

    role: str
    index: int
    ps: tuple[Address, ...]
    address: Address

    @property
    def is_chief(self) -> bool:
        """Whether it is worker 0."""
        return (self.role, self.index) == ("worker", 0)


def task_of(job: Job, wanted: Wanted, config: TfConfig | None) -> HostTask:
    """The task that the command line and TF_CONFIG describe together.

    Args:
        config: TF_CONFIG; without ps it is that of another tool and says nothing.

    Raises:
        UsageError: They contradict each other, or something is missing or invalid.
        BadJobError: The number of ps is not `fleet.ps`, or the job has loaders.
        LostPeerError: The own address of a worker cannot be found, because no ps can be resolved.
    """
    if job.input.num_loaders:
        raise BadJobError("input.from is loaders, expected worker or preload: `psfleet task` starts no loaders")
    known = config if config is not None and config.ps else TfConfig(())
    ps = _ps(job, wanted, known)
    role = _agreed("--role", wanted.role, known.role or None)
    index = _agreed("--index", wanted.index, known.index)
    if role not in ROLES:
        raise UsageError(f"--role is {role!r}, expected ps or worker")
    if role == "ps" and job.fleet.colocate:
        raise UsageError("--role is 'ps', expected worker with fleet.colocate: each worker is a ps, too")
    limit = len(ps) if role == "ps" else job.most_workers
    if not 0 <= index < limit:
        raise UsageError(f"{role} {index}: expected an index from 0 to {limit - 1}")
    return HostTask(role, index, ps, _address(job, wanted, known, role, index, ps))


def environment(
    job: Job, task: HostTask, program_folder: Path, out: Path, tls: Path | None, metrics_port: int, is_text: bool
) -> dict[str, str]:
    """The environment of the task's service, with the same variables as in a container.

    Args:
        program_folder: Searched first for the program's module.
        out: The run folder; the same path for all processes of the fleet.
        tls: Folder with the certificate of the role; None if the job has no TLS.
        metrics_port: Port for Prometheus; 0: none.
        is_text: Whether the log is for readers.
    """
    variables = container.environment(job, job.name, list(task.ps))
    variables |= {
        settings.JOB: job.model_dump_json(),
        settings.PROGRAM_FOLDER: str(program_folder.resolve()),
        settings.OUT: str(out.resolve()),
        settings.INDEX: str(task.index),
        settings.ADDRESS: task.address.data,
        settings.METRICS_PORT: str(metrics_port),
        settings.TLS: "" if tls is None else str(tls.resolve()),
        settings.LOG: settings.TEXT if is_text else "",
        settings.FLEET: "",
    }
    return process_environment.for_child(variables)


def _agreed(option: str, wanted: T | None, configured: T | None) -> T:
    """A value of the command line or of TF_CONFIG, which must not contradict each other."""
    if wanted is not None and configured is not None and wanted != configured:
        raise UsageError(f"{option} is {wanted}, but TF_CONFIG has {configured}: expected the same, or no TF_CONFIG")
    found = configured if wanted is None else wanted
    if found is None:
        raise UsageError(f"{option} is missing, expected it or a TF_CONFIG with cluster.ps and task")
    return found


def _ps(job: Job, wanted: Wanted, known: TfConfig) -> tuple[Address, ...]:
    """The addresses of all ps: of the command line, of TF_CONFIG, or of the job."""
    configured = known.ps or tuple(Address.parse(text) for text in job.fleet.ps_addresses or ())
    ps = configured if wanted.ps is None else tuple(_parsed("--ps", text) for text in wanted.ps.split(","))
    if not ps:
        raise UsageError(
            "--ps is missing, expected HOST:PORT of each ps, a TF_CONFIG with cluster.ps, or fleet.ps_addresses"
        )
    if known.ps and ps != known.ps:
        raise UsageError(f"--ps is {wanted.ps}, but TF_CONFIG has other ps: expected the same, or no TF_CONFIG")
    if len(ps) != job.fleet.ps:
        raise BadJobError(f"the fleet has {len(ps)} ps addresses, expected fleet.ps = {job.fleet.ps}")
    _require_distance(job, [(f"ps {index}", address) for index, address in enumerate(ps)])
    hosts = [address.host for address in ps]
    shared = next((host for host in hosts if hosts.count(host) > 1), None)
    if job.tls and shared is not None:
        raise UsageError(
            f"{shared} has several ps, expected one on each host with tls: true: their tunnels share ports"
        )
    return ps


def _address(job: Job, wanted: Wanted, known: TfConfig, role: str, index: int, ps: tuple[Address, ...]) -> Address:
    """The own address: of a ps its entry, of a worker that of the command line or TF_CONFIG, or a found one."""
    if role == "ps" or job.fleet.colocate:
        if wanted.address is not None:
            raise UsageError(
                "--address: the address of a ps is its entry of --ps, expected --address only for a worker that is none"
            )
        return ps[index]
    if wanted.address is not None:
        address = _parsed("--address", wanted.address)
    elif known.address is not None:
        address = known.address
    else:
        address = Address(own_host([each.host for each in ps]), WORKER_PORT + WORKER_STRIDE * index)
    named = [(f"ps {number}", each) for number, each in enumerate(ps)]
    _require_distance(job, [*named, (f"worker {index}", address)])
    return address


def _parsed(option: str, text: str) -> Address:
    try:
        return Address.parse(text.strip())
    except BadJobError as error:
        raise UsageError(f"{option}: {error}") from error


def _require_distance(job: Job, tasks: Sequence[tuple[str, Address]]) -> None:
    """Refuses addresses on one host whose ports overlap: those after TensorFlow's are the task's, too."""
    for (one, first), (other, second) in itertools.combinations(tasks, 2):
        # On loopback a ps takes any free port for exchanges.
        num_ports = 1 + ((TUNNEL_OFFSET if job.tls else CONTROL_OFFSET) if first.is_loopback else EXCHANGE_OFFSET)
        if first.host == second.host and abs(first.port - second.port) < num_ports:
            raise UsageError(
                f"{one} at {first.data} and {other} at {second.data}: expected ports at least {num_ports} apart, "
                "since those after TensorFlow's port belong to the same process"
            )
