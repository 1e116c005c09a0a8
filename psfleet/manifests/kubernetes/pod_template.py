"""The pod templates of a fleet: containers, permissions, limits, volumes."""

from __future__ import annotations

import math
from typing import Any

from psfleet.addresses import DATA_PORT
from psfleet.job.container import Limits
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import (
    COMPLETION_INDEX,
    CONTROLLER_UID,
    JOB_KEY,
    PS,
    RESULTS,
    WORKER,
    addresses,
    labels,
    member,
    program_map,
    selector,
    tls_secret,
)
from psfleet.manifests.kubernetes.program_configmap import Files
from psfleet.service import settings

Object = dict[str, Any]

PROBE_SECS = 20
"""Between two looks at a container's health; with TLS each starts a Python: a fifth of a second of one core."""
START_PROBE_SECS = 5
PROBE_LIMIT_SECS = 15
PROBE_FAILURES = 3
TMP = "/tmp"
READER_SECS = 3600
"""After which a reader ends by itself, even if psfleet was killed."""


def template(job: Job, role: str, files: Files | None) -> Object:
    """The pod template of the ps or of the workers.

    Args:
        files: Of the training program, which only workers read; None: it is in the image.
    """
    spec: Object = {
        "serviceAccountName": member(job.name, role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # With the headless Service of this name, DNS knows each pod by its Job and index.
        "subdomain": job.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.deadlines.stop_secs),
        "securityContext": pod_security(),
        "containers": [_container(job, role, files)],
        "volumes": _volumes(job, role, files),
    }
    if job.container.access_mode == "ReadWriteOnce":
        spec["affinity"] = same_node_affinity(job.name)
    return {"metadata": {"labels": labels(job.name, role)}, "spec": spec}


def pod_security() -> Object:
    """A pod's part of the security standard "restricted". The group owns what is written to volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": container.USER,
        "runAsGroup": container.USER,
        "fsGroup": container.USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """A container's part of it."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def same_node_affinity(name: str) -> Object:
    """All pods of a fleet on one node: only one can mount the disk, and the scheduler does not check that.

    The first pod, and the reader of a fleet that is down, have the labels themselves: the scheduler lets a pod whose
    term only matches itself on any node.
    """
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector(name)}}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def ports(job: Job) -> dict[str, int]:
    """The ports on which pods of a fleet find each other, by name."""
    data = {"tunnel": container.TUNNEL_PORT} if job.tls else {"tensorflow": DATA_PORT}
    return {**data, "control": container.CONTROL_PORT}


def reader(job: Job, name: str) -> Object:
    """A pod that reads the volume of a fleet, whose NetworkPolicy lets nothing in or out of it."""
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
                "resources": resources(Limits(memory="256Mi")),
                "securityContext": container_security(),
                "volumeMounts": [{"name": "results", "mountPath": container.OUT, "readOnly": True}],
            }
        ],
        "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": job.name, "readOnly": True}}],
    }
    if job.container.access_mode == "ReadWriteOnce":
        spec["affinity"] = same_node_affinity(job.name)
    meta = {"name": name, "labels": labels(job.name, RESULTS)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _container(job: Job, role: str, files: Files | None) -> Object:
    limits: Limits = getattr(job.container, role)
    health = {**_probe(job), "timeoutSeconds": PROBE_LIMIT_SECS}
    open_ports = {**ports(job), "metrics": container.METRICS_PORT}
    return {
        "name": role,
        "image": job.container.ps_image if role == PS else job.container.worker_image,
        "imagePullPolicy": "IfNotPresent",
        "env": _environment(job, role),
        "ports": [{"name": name, "containerPort": port} for name, port in open_ports.items()],
        "resources": resources(limits),
        "securityContext": container_security(),
        # Until it passes, no liveness is asked for; once it has, the pod is ready.
        "startupProbe": {
            **health,
            "periodSeconds": START_PROBE_SECS,
            "failureThreshold": math.ceil(job.deadlines.start_secs / START_PROBE_SECS),
            "initialDelaySeconds": START_PROBE_SECS,
        },
        "livenessProbe": {**health, "periodSeconds": PROBE_SECS, "failureThreshold": PROBE_FAILURES},
        # The services write why they failed; where they cannot, the end of the log says it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(job, role, files),
    }


def _probe(job: Job) -> Object:
    """Asks grpc.health.v1. The kubelet has no certificate, so with TLS a command in the container asks."""
    if job.tls:
        return {"exec": {"command": ["python", "-m", "psfleet.service.health"]}}
    return {"grpc": {"port": container.CONTROL_PORT}}


def _environment(job: Job, role: str) -> list[Object]:
    values = {settings.JOB: container.JOB, **container.environment(job, job.name, addresses(job))}
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
    address = f"{member(job.name, role)}-$({settings.INDEX}).{job.name}:{DATA_PORT}"
    start = {"fieldRef": {"fieldPath": f"metadata.labels['{CONTROLLER_UID}']"}}
    # Whoever deletes a pod, evicts it or drains its node: the Job makes it again. A ps never does anything but leave.
    leave = {"name": settings.ON_SIGTERM, "value": settings.LEAVE}
    of_workers: list[Object] = [leave, {"name": settings.START, "valueFrom": start}]
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": settings.INDEX, "valueFrom": index},
        {"name": settings.ADDRESS, "value": address},
        *(of_workers if role == WORKER else []),
    ]


def resources(limits: Limits) -> Object:
    """Requests equal limits: a container that lacks memory on its node would be killed in the middle of a run."""
    found = {"memory": limits.memory}
    if limits.cpus is not None:
        found["cpu"] = f"{math.ceil(limits.cpus * 1000)}m"
    return {"requests": dict(found), "limits": dict(found)}


def _mounts(job: Job, role: str, files: Files | None) -> list[Object]:
    found: list[Object] = [
        {"name": "tmp", "mountPath": TMP},
        {"name": "results", "mountPath": container.OUT},
        {"name": "job", "mountPath": container.JOB.rpartition("/")[0], "readOnly": True},
    ]
    if job.tls:
        found.append({"name": "tls", "mountPath": container.TLS, "readOnly": True})
    if role == WORKER:
        if files is not None:
            found.append({"name": "program", "mountPath": container.PROGRAM, "readOnly": True})
        for number, (_, target) in enumerate(_data(job)):
            found.append({"name": f"data-{number}", "mountPath": target, "readOnly": True})
    return found


def _volumes(job: Job, role: str, files: Files | None) -> list[Object]:
    found: list[Object] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "results", "persistentVolumeClaim": {"claimName": job.name}},
        {"name": "job", "configMap": {"name": job.name, "items": [{"key": JOB_KEY, "path": JOB_KEY}]}},
    ]
    if job.tls:
        found.append({"name": "tls", "secret": {"secretName": tls_secret(job.name, role)}})
    if role == WORKER:
        if files is not None:
            found.append({"name": "program", "configMap": {"name": program_map(job.name), "items": files.items()}})
        for number, (source, _) in enumerate(_data(job)):
            claim = {"claimName": source, "readOnly": True}
            found.append({"name": f"data-{number}", "persistentVolumeClaim": claim})
    return found


def _data(job: Job) -> list[tuple[str, str]]:
    """The job's own mounts: claims, and where they are mounted."""
    pairs = (mount.partition(":") for mount in job.container.mounts)
    return [(source, target) for source, _, target in pairs]
