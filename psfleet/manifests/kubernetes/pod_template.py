"""The pod templates of a fleet: containers, permissions, limits, volumes."""

from __future__ import annotations

import math
from typing import Any

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.container import Limits
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import (
    CHIEF,
    COMPLETION_INDEX,
    CONTROLLER_UID,
    FIRST_INDEX,
    JOB_KEY,
    LOADER,
    PROGRAM_VOLUME,
    PS,
    RESULTS,
    WORKER,
    addresses,
    component_name,
    labels,
    loader_addresses,
    program_map,
    role_of,
    tls_secret,
)
from psfleet.manifests.kubernetes.placement import mounts_results, same_node_affinity, spread
from psfleet.manifests.on_fleet import OnFleet
from psfleet.service import settings
from psfleet.service.probes import PROBE_FAILURES, PROBE_LIMIT_SECS, PROBE_SECS, START_PROBE_SECS

Object = dict[str, Any]

TMP = "/tmp"
READER_SECS = 3600
"""Lifetime of a reader pod: it ends even if psfleet was killed before it deleted the pod."""
READER_CPUS = 0.5
"""Most CPU cores of a reader pod of a fleet whose pods have a limit of them, as a quota of the namespace demands."""


def template(job: Job, component: str, program: list[Object] | None, place: OnFleet | None = None) -> Object:
    """The pod template of a component's Job.

    Args:
        program: The `items` of the volume with the program's files, which workers and loaders read; None: it is in the
            image.
        place: On a standing fleet, whose certificates the pods have; None: the run has ps of its own.
    """
    spec: Object = {
        "serviceAccountName": component_name(job.name, role_of(component)),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # With the headless Service of this name, DNS knows each pod by its Job and index.
        "subdomain": job.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.deadlines.stop_secs),
        "securityContext": pod_security(),
        "tolerations": [],  # The components of k8s/components append to it.
        "containers": [_container(job, component, program, place)],
        "volumes": _volumes(job, component, program, place),
    }
    if mounts_results(job, component) and job.container.access_mode == "ReadWriteOnce":
        spec["affinity"] = same_node_affinity(job)
    else:
        spec["topologySpreadConstraints"] = [spread(job, component)]
    return {"metadata": {"labels": labels(job.name, component)}, "spec": spec}


def pod_security() -> Object:
    """The pod's settings for the security standard "restricted". The group owns what is written to volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": container.USER,
        "runAsGroup": container.USER,
        "fsGroup": container.USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """The container's settings for the security standard "restricted"."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def ports(job: Job, component: str = PS) -> dict[str, int]:
    """The ports on which the pods of a component take connections of others, by name."""
    data = {"tunnel": container.TUNNEL_PORT} if job.tls else {"tensorflow": DATA_PORT}
    if component == LOADER:
        batches = Address(component, DATA_PORT).batches
        data["batches"] = batches.tunnel_port if job.tls else batches.port
    serves_workers = component == PS or (job.fleet.colocate and component != LOADER)
    exchange = {"exchange": container.EXCHANGE_PORT} if serves_workers else {}
    return {**data, "control": container.CONTROL_PORT, **exchange}


def reader(job: Job, name: str) -> Object:
    """A pod from which `psfleet up` copies the results on a fleet's volume; the fleet's NetworkPolicy isolates it."""
    cpus = [each for each in (job.container.ps.cpus, job.container.worker.cpus) if each is not None]
    limits = Limits(memory="256Mi", cpus=min([READER_CPUS, *cpus]) if cpus else None)
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_SECS,
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": RESULTS,
                "image": job.container.ps_image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/bin/tini", "--", "sleep", str(READER_SECS)],
                "resources": resources(limits),
                "securityContext": container_security(),
                "volumeMounts": [{"name": "results", "mountPath": container.OUT, "readOnly": True}],
            }
        ],
        "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": job.name, "readOnly": True}}],
    }
    if job.container.access_mode == "ReadWriteOnce":
        spec["affinity"] = same_node_affinity(job)
    meta = {"name": name, "labels": labels(job.name, RESULTS)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _container(job: Job, component: str, program: list[Object] | None, place: OnFleet | None) -> Object:
    limits: Limits = getattr(job.container, role_of(component))
    open_ports = {**ports(job, component), "metrics": container.METRICS_PORT}
    command: Object = {"command": list(container.LOADER)} if component == LOADER else {}
    return {
        "name": component,
        "image": job.container.ps_image if component == PS else job.container.worker_image,
        "imagePullPolicy": "IfNotPresent",
        **command,
        "env": _environment(job, component, job.name if place is None else place.run),
        "ports": [{"name": name, "containerPort": port} for name, port in open_ports.items()],
        "resources": resources(limits),
        "securityContext": container_security(),
        **probes(probe(job.tls), job.deadlines.start_secs),
        # A service writes why it failed; if it could not (it was killed), Kubernetes takes the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(job, component, program),
    }


def probes(asks: Object, start_secs: float) -> Object:
    """The probes of a container.

    Args:
        asks: What asks for its health.
        start_secs: Timeout for the first healthy answer.
    """
    health = {**asks, "timeoutSeconds": PROBE_LIMIT_SECS}
    return {
        # The liveness probe begins once this one has passed. There is no readiness probe, so the pod is ready then.
        "startupProbe": {
            **health,
            "periodSeconds": START_PROBE_SECS,
            "failureThreshold": math.ceil(start_secs / START_PROBE_SECS),
            "initialDelaySeconds": START_PROBE_SECS,
        },
        "livenessProbe": {**health, "periodSeconds": PROBE_SECS, "failureThreshold": PROBE_FAILURES},
    }


def probe(tls: bool) -> Object:
    """Asks grpc.health.v1. The kubelet has no certificate, so with TLS a command in the container asks."""
    if tls:
        return {"exec": {"command": ["python", "-m", "psfleet.service.health"]}}
    return {"grpc": {"port": container.CONTROL_PORT}}


def _environment(job: Job, component: str, run: str) -> list[Object]:
    values = {settings.JOB: container.JOB, **container.environment(job, run, addresses(job), loader_addresses(job))}
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
    # The hosts of a Job's pods have completion indexes.
    address = f"{component_name(job.name, component)}-$({settings.COMPLETION_INDEX}).{job.name}:{DATA_PORT}"
    first = FIRST_INDEX[component]
    start = {"fieldRef": {"fieldPath": f"metadata.labels['{CONTROLLER_UID}']"}}
    # The Job replaces a pod that is deleted or evicted, or whose node is drained: SIGTERM must not make the chief end
    # the run. A ps or loader leaves in any case.
    leave = {"name": settings.ON_SIGTERM, "value": settings.LEAVE}
    of_workers: list[Object] = [leave, {"name": settings.START, "valueFrom": start}] if component == CHIEF else [leave]
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": settings.COMPLETION_INDEX, "valueFrom": index},
        *([{"name": settings.FIRST_INDEX, "value": str(first)}] if first else []),
        {"name": settings.ADDRESS, "value": address},
        *(of_workers if role_of(component) == WORKER else []),
    ]


def resources(limits: Limits) -> Object:
    """Requests equal to the limits: with lower requests, a container can be killed because its node lacks memory."""
    amounts = {"memory": limits.memory}
    if limits.cpus is not None:
        amounts["cpu"] = f"{math.ceil(limits.cpus * 1000)}m"
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _mounts(job: Job, component: str, program: list[Object] | None) -> list[Object]:
    mounts: list[Object] = [
        {"name": "tmp", "mountPath": TMP},
        {"name": "job", "mountPath": container.JOB.rpartition("/")[0], "readOnly": True},
    ]
    if component != PS:
        if program is not None:
            mounts.append({"name": PROGRAM_VOLUME, "mountPath": container.PROGRAM, "readOnly": True})
        for number, (_, target) in enumerate(_data(job)):
            mounts.append({"name": f"data-{number}", "mountPath": target, "readOnly": True})
    if mounts_results(job, component):
        mounts.append({"name": "results", "mountPath": container.OUT})
    if job.tls:
        mounts.append({"name": "tls", "mountPath": container.TLS, "readOnly": True})
    return mounts


def _volumes(job: Job, component: str, program: list[Object] | None, place: OnFleet | None) -> list[Object]:
    """In the order of `_mounts`, on which the components in k8s/components rely: the program is third, TLS is last."""
    volumes: list[Object] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "job", "configMap": {"name": job.name, "items": [{"key": JOB_KEY, "path": JOB_KEY}]}},
    ]
    if component != PS:
        if program is not None:
            volumes.append({"name": PROGRAM_VOLUME, "configMap": {"name": program_map(job.name), "items": program}})
        for number, (source, _) in enumerate(_data(job)):
            claim = {"claimName": source, "readOnly": True}
            volumes.append({"name": f"data-{number}", "persistentVolumeClaim": claim})
    if mounts_results(job, component):
        volumes.append({"name": "results", "persistentVolumeClaim": {"claimName": job.name}})
    if job.tls:
        owner = job.name if place is None else place.fleet
        volumes.append({"name": "tls", "secret": {"secretName": tls_secret(owner, role_of(component))}})
    return volumes


def _data(job: Job) -> list[tuple[str, str]]:
    """The job's `container.mounts` as pairs: name of a PersistentVolumeClaim, path in the container."""
    pairs = (mount.partition(":") for mount in job.container.mounts)
    return [(source, target) for source, _, target in pairs]
