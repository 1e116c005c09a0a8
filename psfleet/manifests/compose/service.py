"""Renders a service as a docker compose file: a front, whose ports are published, and members on a closed network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.activity import Activity
from psfleet.job.container import Limits
from psfleet.job.job import Job
from psfleet.job.service_access import ServiceAccess, life_file
from psfleet.job.service_plan import PlannedModel, ServicePlan
from psfleet.manifests import container
from psfleet.manifests.compose.driven import ACTIVITY, CHIEF, CONTENT, OF_TRAINING
from psfleet.manifests.compose.mounts import bind, duration, plain, volume
from psfleet.manifests.compose.paths import Paths
from psfleet.manifests.compose.render import (
    FLEET,
    OUTSIDE,
    RESULTS,
    ROLE,
    Service,
    closed_network,
    member,
    project,
)
from psfleet.manifests.yaml_text import dump
from psfleet.service import settings

FRONT = "front"
FRONT_HOST = "front-of-members"
"""Host name of the front on the closed network alone, on whose address its TensorFlow server listens."""
FRONT_SECS, MEMBER_SECS = 5, 15
"""Intervals of health checks; that of the front decides how soon `psfleet serve` knows that the service is ready."""
CHECK_SECS = 30
"""Timeout of a health check, which looks for 10 s before it kills a process."""
OWN = (*OF_TRAINING, settings.RECORDS)
"""Variables of the containers of a run that those of a service do not have."""


def file_text(job: Job, activity: Activity, plan: ServicePlan) -> str:
    """A compose file as YAML; all its paths are absolute.

    Args:
        job: Describes the containers; its name is that of the fleet.
    """
    return dump(render(job, activity, plan))


def render(job: Job, activity: Activity, plan: ServicePlan) -> dict[str, Any]:
    """A compose file's content; see `file_text`."""
    services = {FRONT: _front(job, activity, plan)}
    services |= {f"member-{index}": _member(job, activity, plan, index) for index in range(plan.num_members)}
    fleets = dict.fromkeys(model.fleet for model in plan.models if model.fleet)
    return {
        "name": project(job.name),
        "services": services,
        "networks": {FLEET: closed_network(), OUTSIDE: {}},
        "volumes": {fleet: {"external": True, "name": f"{project(fleet)}_{RESULTS}"} for fleet in fleets},
    }


def _front(job: Job, activity: Activity, plan: ServicePlan) -> Service:
    options = plan.access.options
    assert options is not None, "a plan has the access of a front"
    address = Address(FRONT_HOST, DATA_PORT)
    variables = {settings.INDEX: "0", settings.ADDRESS: address.data}
    members = tuple(_address(index).data for index in range(plan.num_members))
    access = plan.access.model_copy(update={"front": address.data, "members": members})
    # It only calls members, and would take memory of the GPUs.
    limits = job.container.worker.model_copy(update={"gpus": False})
    service = _service(job, activity, activity.driver, access, variables, limits)
    published = [
        {"target": options.rest_port, "published": str(plan.rest_port), "host_ip": plan.host},
        {"target": options.grpc_port, "published": str(plan.grpc_port), "host_ip": plan.host},
    ]
    if plan.metrics_port:
        service["environment"][settings.METRICS_PORT] = str(container.METRICS_PORT)
        target = container.METRICS_PORT
        published.append({"target": target, "published": str(plan.metrics_port), "host_ip": "127.0.0.1"})
    service["labels"][ROLE] = CHIEF
    ready = ["--rest-port", str(options.rest_port), *["--tls"][: options.tls_cert is not None]]
    return service | {
        "ports": published,
        "networks": {FLEET: {"aliases": [FRONT_HOST]}, OUTSIDE: {}},
        "healthcheck": _check(job, FRONT, 0, FRONT_SECS, *ready),
    }


def _member(job: Job, activity: Activity, plan: ServicePlan, index: int) -> Service:
    model = plan.model_of(index)
    front = Address(FRONT_HOST, DATA_PORT).data
    access = plan.access.model_copy(update={"front": front, "member": model.source, "options": None})
    variables = {settings.INDEX: str(index), settings.ADDRESS: _address(index).data}
    service = _service(job, activity, activity.worker, access, variables, job.container.worker)
    service["volumes"] += [_mount(model), *Paths(Path(model.program_folder) / "job.yaml", None).mounts(job)]
    return service | {"networks": [FLEET], "healthcheck": _check(job, "member", index, MEMBER_SECS)}


def _address(member: int) -> Address:
    """Of the TensorFlow server of a member, or of the tunnel to it."""
    return Address(f"member-{member}", DATA_PORT)


def _mount(model: PlannedModel) -> dict[str, Any]:
    return volume(model.fleet, container.MODEL) if model.fleet else bind(plain(model.folder), container.MODEL)


def _service(
    job: Job, activity: Activity, module: str, access: ServiceAccess, variables: Mapping[str, str], limits: Limits
) -> Service:
    """What front and members have in common. Docker starts them again until `psfleet down`."""
    own = {settings.OUT: container.SERVICE, settings.SERVICE: access.model_dump_json(), **variables}
    texts = {name: plain(value) for name, value in own.items()}
    service = member(job, [], "worker", job.container.worker_image, limits, texts)
    service["environment"] = {name: text for name, text in service["environment"].items() if name not in OWN}
    service["labels"] |= {ACTIVITY: activity.kind, CONTENT: plain(activity.model_dump_json())}
    return service | {"restart": "unless-stopped", "entrypoint": ["/usr/bin/tini", "--", "python", "-m", module]}


def _check(job: Job, role: str, index: int, interval_secs: int, *further: str) -> Service:
    """The health check of a process, which kills it if it is frozen."""
    file, start_secs = life_file(Path(container.SERVICE), role, index), job.deadlines.start_secs
    return {
        "test": ["CMD", *container.LIFE_CHECK, str(file), "--start-secs", f"{start_secs:g}", "--end", *further],
        "interval": f"{interval_secs}s",
        "timeout": f"{CHECK_SECS}s",
        "retries": 1,
        "start_period": duration(start_secs),
    }
