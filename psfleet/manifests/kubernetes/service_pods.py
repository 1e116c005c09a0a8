"""The pod templates of a service: of its front, and of each member."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.job.service_access import ServiceAccess, life_file
from psfleet.job.service_plan import ServicePlan
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import (
    FRONT,
    MEMBER,
    PROGRAM_VOLUME,
    WORKER,
    component_name,
    labels,
    program_map,
    selector,
)
from psfleet.manifests.kubernetes.placement import NODE
from psfleet.manifests.kubernetes.pod_settings import apply_placement, apply_settings
from psfleet.manifests.kubernetes.pod_template import Object, template
from psfleet.manifests.kubernetes.service_models import mount_model
from psfleet.service import settings
from psfleet.service.probes import PROBE_FAILURES, PROBE_LIMIT_SECS, START_PROBE_SECS

FRONT_VOLUME = "front"
"""Volume of the front's pod: the Secret with its files."""
LIFE_SECS, LIFE_LIMIT_SECS = 15, 30
"""Interval and timeout of the liveness probe, which looks for 10 s before it kills a process."""
READY_SECS, READY_FAILURES = 2, 3
"""Interval of the front's readiness probe, and failures in a row after which clients are not led to it."""
READY_LIMIT_SECS = 5
LOST_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
LOST_SECS = 30
"""How long the pod of a node that does not answer is awaited, before its Deployment makes another one."""
OF_TRAINING = (settings.PS, settings.METRICS_PORT)
"""Variables of a run's pods that these do not have, or with another value."""


@dataclass(frozen=True)
class Program:
    """A program in a ConfigMap.

    Attributes:
        owner: The name from which that of the ConfigMap is made: see `program_map`.
        items: Of a volume with its files.
    """

    owner: str
    items: Sequence[Object]


def data_port(job: Job) -> dict[str, int]:
    """The port by which TensorFlow of front and members reach each other, by name."""
    return {"tunnel": container.TUNNEL_PORT} if job.tls else {"tensorflow": DATA_PORT}


def client_ports(plan: ServicePlan) -> dict[str, tuple[int, int]]:
    """Ports that clients connect to, of the Service and of the front's container, by name."""
    options = plan.access.options
    assert options is not None, "a plan has the access of a front"
    found = {"rest": (plan.rest_port, options.rest_port), "grpc": (plan.grpc_port, options.grpc_port)}
    if plan.metrics_port:
        found["metrics"] = (plan.metrics_port, container.METRICS_PORT)
    return found


def member_name(job: Job, index: int) -> str:
    """The name of a member's Deployment, and of the host of its pod."""
    return f"{component_name(job.name, MEMBER)}-{index}"


def front_pod(job: Job, activity: Activity, plan: ServicePlan, has_files: bool) -> Object:
    """The pod template of the front.

    Args:
        has_files: Whether there is a Secret with its files.
    """
    options = plan.access.options
    assert options is not None, "a plan has the access of a front"
    members = tuple(_member_address(job, index).data for index in range(plan.num_members))
    access = plan.access.model_copy(update={"front": _front_address(job).data, "members": members})
    own = _container(job, access, FRONT, 0, activity.driver, _front_address(job))
    own["ports"] += [{"name": name, "containerPort": inner} for name, (_, inner) in client_ports(plan).items()]
    if plan.metrics_port:
        own["env"].append({"name": settings.METRICS_PORT, "value": str(container.METRICS_PORT)})
    own["readinessProbe"] = {
        "httpGet": {
            "path": "/v2/health/ready",
            "port": options.rest_port,
            "scheme": "HTTP" if options.tls_cert is None else "HTTPS",
        },
        "periodSeconds": READY_SECS,
        "timeoutSeconds": READY_LIMIT_SECS,
        "failureThreshold": READY_FAILURES,
    }
    # It has no data of the program.
    without = job.model_copy(update={"container": job.container.model_copy(update={"mounts": []})})
    pod = _pod(without, FRONT, component_name(job.name, FRONT), own, None)
    if has_files:
        secret = {"secretName": component_name(job.name, FRONT), "defaultMode": 0o440}
        (own,) = pod["spec"]["containers"]
        own["volumeMounts"].append({"name": FRONT_VOLUME, "mountPath": container.FRONT_FILES, "readOnly": True})
        pod["spec"]["volumes"].append({"name": FRONT_VOLUME, "secret": secret})
    # It runs no program: the variables, Secrets and GPUs of workers are for members.
    return apply_placement(job.kubernetes, pod)


def member_pod(job: Job, activity: Activity, plan: ServicePlan, index: int, program: Program | None) -> Object:
    """The pod template of a member.

    Args:
        program: Of its model; None: it is in the image.
    """
    model = plan.model_of(index)
    update = {"front": _front_address(job).data, "member": model.source, "options": None}
    access = plan.access.model_copy(update=update)
    own = _container(job, access, MEMBER, index, activity.worker, _member_address(job, index))
    pod = _pod(job, MEMBER, member_name(job, index), own, program)
    pod["spec"]["subdomain"] = component_name(job.name, MEMBER)
    mount_model(job, plan, index, pod)
    return apply_settings(job.kubernetes, WORKER, pod)


def _front_address(job: Job) -> Address:
    """Of TensorFlow of the front: the host of its pod has the name of its headless Service.

    So the front itself finds its own address under this name, and not that of the pod that it replaces.
    """
    return Address(component_name(job.name, FRONT), DATA_PORT)


def _member_address(job: Job, index: int) -> Address:
    """Of TensorFlow of a member, or of the tunnel to it."""
    return Address(f"{member_name(job, index)}.{component_name(job.name, MEMBER)}", DATA_PORT)


def _container(job: Job, access: ServiceAccess, component: str, index: int, module: str, address: Address) -> Object:
    """What the container of a process has of its own."""
    values = {
        settings.JOB: container.JOB,
        **container.environment(job, job.name, ()),
        settings.OUT: container.SERVICE,
        settings.INDEX: str(index),
        settings.ADDRESS: address.data,
        settings.SERVICE: access.model_dump_json(),
    }
    file = str(life_file(Path(container.SERVICE), component, index))
    command = [*container.LIFE_CHECK, file, "--start-secs", f"{job.deadlines.start_secs:g}"]
    return {
        "name": component,
        "command": ["/usr/bin/tini", "--", "python", "-m", module],
        "ports": [{"name": name, "containerPort": port} for name, port in data_port(job).items()],
        # Kubernetes replaces `$(NAME)`, and `$$` by `$`.
        "env": [
            {"name": name, "value": value.replace("$", "$$")}
            for name, value in values.items()
            if name not in OF_TRAINING
        ],
        # The file of the process before it outlives a restart of the container.
        "startupProbe": {
            "exec": {"command": command},
            "periodSeconds": START_PROBE_SECS,
            "timeoutSeconds": PROBE_LIMIT_SECS,
            "failureThreshold": math.ceil(job.deadlines.start_secs / START_PROBE_SECS),
        },
        "livenessProbe": {
            "exec": {"command": [*command, "--end"]},
            "periodSeconds": LIFE_SECS,
            "timeoutSeconds": LIFE_LIMIT_SECS,
            "failureThreshold": PROBE_FAILURES,
        },
    }


def _pod(job: Job, component: str, host: str, own: Object, program: Program | None) -> Object:
    """As that of a run's worker, but for what its container does, and that the kubelet starts it again."""
    made = template(job, WORKER, None if program is None else [*program.items])
    spec = made["spec"]
    (of_worker,) = spec["containers"]
    spec["containers"] = [{**of_worker, **own}]
    for volume in spec["volumes"]:
        if program is not None and volume["name"] == PROGRAM_VOLUME:
            volume["configMap"]["name"] = program_map(program.owner)
    del spec["subdomain"]
    spec |= {
        "hostname": host,
        "restartPolicy": "Always",
        "tolerations": [
            {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_SECS}
            for taint in LOST_TAINTS
        ],
        "serviceAccountName": component_name(job.name, component),
    }
    alike = {"matchLabels": selector(job.name, component)}
    spec["topologySpreadConstraints"] = [
        {"maxSkew": 1, "topologyKey": NODE, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": alike}
    ]
    return {"metadata": {"labels": labels(job.name, component)}, "spec": spec}
