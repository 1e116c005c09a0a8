"""Renders a job as a docker compose file: services, networks, limits; needs no Docker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psfleet.addresses import Address, container_addresses, loader_addresses, num_own_ps
from psfleet.job.container import Limits
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.compose import monitoring, store_access
from psfleet.manifests.compose.limits import limited
from psfleet.manifests.compose.mounts import certificate_mount, duration, plain, volume
from psfleet.manifests.compose.on_fleet import moved
from psfleet.manifests.compose.paths import Paths
from psfleet.manifests.on_fleet import OnFleet
from psfleet.manifests.yaml_text import comment, dump, job_text
from psfleet.service import settings

ROLE = "psfleet.role"
"""Label: ps, loader, chief, worker or tensorboard."""
FLEET, OUTSIDE = "fleet", "outside"
"""Networks: the first has no way out or in; on the second, ports are published on loopback, and stores reached."""
RESULTS = "results"
TENSORBOARD_PORT, TENSORBOARD_PORTS = 6006, "6006-6036"
"""The engine publishes the first free one, so that several fleets can have a TensorBoard each."""
HEALTH_SECS = 15
"""Interval of health checks; each starts a Python process, which takes 0.2 s of one core."""
HEALTH_COMMAND = ("python", "-m", "psfleet.service.health")
HEADER = """\
# A psfleet fleet, made from a job file by
#   {command}
# Change the job file and render again; the training program is the folder mounted at {program}.
#   docker compose -f FILE up -d{scaled}
"""
SCALED = " [--scale worker=N]     N: workers and spares beside the chief"

Service = dict[str, Any]


def project(name: str) -> str:
    """The compose project of a job's name."""
    return f"psfleet-{name}"


def network_of(name: str) -> str:
    """The engine's name of the network of a fleet."""
    return f"{project(name)}_{FLEET}"


def file_text(
    job: Job, job_file: Path, folder: Path | None, command: str, *, paused: bool = False, place: OnFleet | None = None
) -> str:
    """A compose file as YAML.

    Args:
        job_file: Mounts are relative to its folder, which is the program's.
        folder: The folder of the compose file, to which its paths are relative; None: paths are absolute.
        command: The command line that renders this file, for its header.
        paused: Whether the run is held at the step that it starts from.
        place: The standing fleet on whose network it trains; None: on a network of its own.
    """
    content = render(job, job_file, folder, paused)
    placed = content if place is None else moved(content, network_of(place.fleet), place, FLEET, OUTSIDE)
    scaled = "" if job.fleet.colocate else SCALED
    return HEADER.format(command=comment(command), program=container.PROGRAM, scaled=scaled) + dump(placed)


def render(job: Job, job_file: Path, folder: Path | None = None, paused: bool = False) -> dict[str, Any]:
    """A compose file's content; see `file_text`.

    Raises:
        BadJobError: The checkpoints are in a store, and `tls` is false.
    """
    store_access.require_closed(job)
    paths = Paths(job_file, folder)
    ps, _ = container_addresses(job)
    services = {f"ps-{index}": _ps(job, ps, paths, index) for index in range(num_own_ps(job))}
    services |= {f"loader-{index}": _loader(job, ps, paths, index) for index in range(job.most_loaders)}
    serving = [name for name, service in services.items() if "profiles" not in service]
    others = _colocated(job, ps, paths, serving) if job.fleet.colocate else {"worker": _worker(job, ps, paths, serving)}
    services |= others
    services["chief"] = _chief(job, ps, paths, [*serving, *others], paused)
    services["tensorboard"] = _tensorboard(job)
    services |= monitoring.services(FLEET, OUTSIDE, container_hardening(), lambda path: paths.source(str(path)))
    return {
        "name": project(job.name),
        "services": services,
        "networks": {FLEET: closed_network(), OUTSIDE: {}},
        "volumes": {RESULTS: {}},
    }


def _ps(job: Job, ps: list[Address], paths: Paths, index: int) -> Service:
    """Mounts the program's folder only to see whether the program was changed after it failed (see `ExitRecord`)."""
    own = {settings.INDEX: str(index), settings.ADDRESS: ps[index].data}
    service = member(job, ps, "ps", job.container.ps_image, job.container.ps, own)
    service["volumes"] += paths.program(job)
    return service


def _loader(job: Job, ps: list[Address], paths: Paths, index: int) -> Service:
    """Mounts what workers do, without a way out. One that `psfleet scale` can add only starts when it is named."""
    address = loader_addresses(job)[index]
    own = {settings.INDEX: str(index), settings.ADDRESS: address.data}
    service = member(job, ps, "loader", job.container.worker_image, job.container.loader, own)
    service["volumes"] += paths.mounts(job)
    networks = {FLEET: {"aliases": [monitoring.ALIAS, address.host]}}
    profiles: Service = {} if index < job.input.num_loaders else {"profiles": ["added"]}
    return service | {"entrypoint": list(container.LOADER), "networks": networks} | profiles


def _worker(job: Job, ps: list[Address], paths: Paths, serving: list[str]) -> Service:
    """Workers and spares other than the chief; they lease their indices from ps 0."""
    service = member(job, ps, "worker", job.container.worker_image, job.container.worker, {settings.INDEX: "-1"})
    service["volumes"] += paths.mounts(job)
    deploy = {**service.get("deploy", {}), "replicas": job.fleet.processes - 1}
    return service | {"deploy": deploy, "depends_on": after(serving)}


def _colocated(job: Job, ps: list[Address], paths: Paths, serving: list[str]) -> dict[str, Service]:
    """Workers other than the chief that are a ps, too: each has its index and its name on the network."""
    services = {}
    for index in range(1, job.fleet.workers):
        own = {settings.INDEX: str(index), settings.ADDRESS: ps[index].data}
        service = member(job, ps, "worker", job.container.worker_image, job.container.worker, own)
        service["volumes"] += paths.mounts(job)
        services[ps[index].host] = service | {"depends_on": after(serving)}
    return services


def _chief(job: Job, ps: list[Address], paths: Paths, others: list[str], paused: bool) -> Service:
    """Depends on all others, so that compose stops it first and it can save while they are still there."""
    own = {settings.INDEX: "0", **container.hold(paused)}
    service = member(job, ps, "chief", job.container.worker_image, job.container.worker, own)
    service["volumes"] += paths.mounts(job)
    service["depends_on"] = after(others)
    if job.fleet.colocate:
        service["environment"][settings.ADDRESS] = ps[0].data
        service["networks"][FLEET]["aliases"].append(ps[0].host)
    return service


def _tensorboard(job: Job) -> Service:
    """Reads the summaries of the chief; reaches no other container."""
    command = ["python", "-m", "tensorboard.main", f"--logdir={container.OUT}/tensorboard", "--bind_all"]
    return {
        "image": job.container.worker_image,
        "labels": {ROLE: "tensorboard"},
        "entrypoint": ["/usr/bin/tini", "--"],
        "command": [*command, f"--port={TENSORBOARD_PORT}"],
        "restart": "unless-stopped",
        "networks": [OUTSIDE],
        "ports": [{"target": TENSORBOARD_PORT, "published": TENSORBOARD_PORTS, "host_ip": "127.0.0.1"}],
        "volumes": [volume(RESULTS, container.OUT)],
        "cpu_shares": 64,
        "stop_grace_period": "2s",
        **container_hardening(),
        **limited(Limits(memory="1Gi", pids=128)),
    }


def member(job: Job, ps: list[Address], role: str, image: str, limits: Limits, own: Mapping[str, str]) -> Service:
    """The settings that ps, loaders, workers and chief share; `own` are environment variables of this service."""
    own_job = {settings.JOB: plain(job_text(job)), settings.RECORDS: container.RECORDS}
    restarts = job.fleet.max_restarts
    store = store_access.variables(job, role)
    outside: Service = {OUTSIDE: {}} if store or job.fleet.ps_addresses is not None else {}
    return {
        "image": image,
        "labels": {ROLE: role},
        "environment": {
            **own_job,
            **container.environment(job, job.name, ps, loader_addresses(job)),
            **own,
            **store,
        },
        "restart": f"on-failure:{restarts}" if restarts else "no",
        "stop_grace_period": duration(job.deadlines.stop_secs),
        "networks": {FLEET: {"aliases": [monitoring.ALIAS]}, **outside},
        "volumes": [*_results(job, role), *_certificates(job, role), *store_access.mounts(job, role)],
        "healthcheck": health_check(job.deadlines.start_secs),
        **container_hardening(),
        **limited(limits),
    }


def health_check(start_secs: float) -> Service:
    """The health check of a ps, loader or worker, which may take so long to start."""
    return {
        "test": ["CMD", *HEALTH_COMMAND],
        "interval": f"{HEALTH_SECS}s",
        "timeout": "10s",
        "retries": 3,
        "start_period": duration(start_secs),
    }


def container_hardening() -> Service:
    """Restrictions of every service: no capabilities, no new privileges, a read-only root; logs are rotated."""
    return {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "logging": {"driver": "json-file", "options": {"max-size": "20m", "max-file": "5"}},
    }


def _results(job: Job, role: str) -> list[Service]:
    """The mount of the results. Only the chief needs them; another container has an empty `/out` of its own.

    The image declares that folder as a volume: it lasts as long as the container, over its restarts.
    """
    if role == "loader" or (role != "chief" and not job.checkpoint.shared):
        return []
    return [{"type": "volume", "source": RESULTS, "target": container.OUT}]


def _certificates(job: Job, role: str) -> list[Service]:
    """The mount of a role's certificate."""
    return [certificate_mount(job.name, role if role in ("ps", "loader") else "worker")] if job.tls else []


def closed_network() -> dict[str, Any]:
    """A network without a way out, on which the engine's machine has no address.

    On an ordinary internal network it has one, and each of its users reaches TensorFlow's port. Since version 28 the
    engine calls a network with these settings `isolated`, but versions before that do not know the word.
    """
    return {
        "internal": True,
        "enable_ipv6": False,
        "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }


def after(services: list[str]) -> dict[str, dict[str, str]]:
    """What a service depends on that others must have started."""
    return {name: {"condition": "service_started"} for name in services}
