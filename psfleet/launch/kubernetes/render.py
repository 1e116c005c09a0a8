"""Renders a job as Kubernetes objects: two Indexed Jobs, and what they stand on; needs no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psfleet.errors import PERMANENT_CODES
from psfleet.job.job import Job
from psfleet.launch.kubernetes.names import JOB_KEY, PS, WORKER, labels, member, selector
from psfleet.launch.kubernetes.pods import Object, ports, template
from psfleet.launch.kubernetes.program_configmap import Files
from psfleet.launch.proof import STOPPED
from psfleet.launch.yaml_text import dump, job_text

HEADER = """\
# A psfleet fleet, made from a job file by
#   {command}
# Change the job file and render again.
"""
DNS_PORT = 53


def manifests_text(job: Job, job_file: Path, command: str) -> str:
    """All objects as YAML.

    Args:
        job_file: Its folder is the training program's.
        command: That makes this text again.

    Raises:
        UsageError: The program does not fit into a ConfigMap.
    """
    return HEADER.format(command=command) + dump(*render(job, job_file))


def render(job: Job, job_file: Path) -> list[Object]:
    """All objects of a fleet, in the order in which they are made; see `manifests_text`."""
    files = Files.of(job_file.resolve().parent) if job.container.program == "mount" else None
    roles = [PS, WORKER] if job.fleet.ps_addresses is None else [WORKER]
    found = [_object("v1", "ServiceAccount", job, role, automountServiceAccountToken=False) for role in roles]
    found += [_config(job), _claim(job), _service(job), _policy(job)]
    if PS in roles:
        found += [_disruption_budget(job), _ps(job)]
    found.append(_workers(job, files))
    # Last: it may be long.
    return [*found, files.config_map(job.name)] if files is not None else found


def _object(version: str, kind: str, job: Job, component: str | None = None, **rest: Any) -> Object:
    name = job.name if component is None else member(job.name, component)
    meta = {"name": name, "labels": labels(job.name, component)}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **rest}


def _config(job: Job) -> Object:
    return _object("v1", "ConfigMap", job, data={JOB_KEY: job_text(job)})


def _claim(job: Job) -> Object:
    """The volume for checkpoints, reports and TensorBoard; it outlives the run."""
    spec: Object = {
        "accessModes": [job.container.access_mode],
        "resources": {"requests": {"storage": job.container.storage}},
    }
    if job.container.storage_class is not None:
        spec["storageClassName"] = job.container.storage_class
    return _object("v1", "PersistentVolumeClaim", job, spec=spec)


def _service(job: Job) -> Object:
    """Gives each pod a name. A ps must be found before it is ready: workers tell it what it is to serve."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(job.name)}
    named = [{"name": name, "port": port} for name, port in ports(job).items()]
    return _object("v1", "Service", job, spec={**spec, "ports": named})


def _policy(job: Job) -> Object:
    """Nothing in and nothing out, but between ps and workers, and to the cluster's DNS."""
    fleet = {"matchLabels": selector(job.name)}
    peers = {
        **fleet,
        "matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "In", "values": [PS, WORKER]}],
    }
    open_ports = [{"protocol": "TCP", "port": port} for port in ports(job).values()]
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    dns_ports = [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]
    spec: Object = {
        "podSelector": fleet,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": peers}], "ports": open_ports}],
        "egress": [{"to": [{"podSelector": peers}], "ports": open_ports}, {"to": [dns], "ports": dns_ports}],
    }
    if job.fleet.ps_addresses is not None:
        spec["egress"].append({"ports": [{"protocol": "TCP", "port": port} for port in _ports_elsewhere(job)]})
    return _object("networking.k8s.io/v1", "NetworkPolicy", job, spec=spec)


def _ports_elsewhere(job: Job) -> list[int]:
    """Of ps that the fleet does not start: data and control port of each, and the tunnel's with TLS."""
    data = [int(text.rpartition(":")[2]) for text in job.fleet.ps_addresses or ()]
    return sorted({port + offset for port in data for offset in ((1, 3) if job.tls else (0, 1))})


def _disruption_budget(job: Job) -> Object:
    """One ps at a time is evicted. The API knows no `maxUnavailable` for pods of a Job."""
    spec = {
        "minAvailable": job.fleet.ps - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(job.name, PS)},
    }
    return _object("policy/v1", "PodDisruptionBudget", job, PS, spec=spec)


def _ps(job: Job) -> Object:
    spec = {**_job_spec(job, job.fleet.ps), "maxFailedIndexes": 0, "template": template(job, PS, None)}
    return _object("batch/v1", "Job", job, PS, spec=spec)


def _workers(job: Job, files: Files | None) -> Object:
    """Index 0 is the chief, and its success the run's. Once fewer workers are left than a step needs, it is over."""
    replicas = job.fleet.replicas
    spec = {
        **_job_spec(job, replicas),
        "maxFailedIndexes": min(replicas - job.quorum, job.quorum),
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": template(job, WORKER, files),
    }
    return _object("batch/v1", "Job", job, WORKER, spec=spec)


def _job_spec(job: Job, pods: int) -> Object:
    """What both Jobs have alike. `suspend` is left to whoever queues jobs (Kueue).

    A pod that is gone is made again, after it has ended: there are never two of an index. The Job alone restarts, not
    the kubelet, since only it tells exit codes apart: permanent ones end the Job, and what came from outside is not
    counted against the limit: `psfleet down`, and a pod that is deleted, evicted or suspended.
    """
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": sorted(PERMANENT_CODES)}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": sorted(STOPPED)}},
    ]
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimitPerIndex": job.fleet.max_restarts,
        "podFailurePolicy": {"rules": rules},
        "podReplacementPolicy": "Failed",
        "activeDeadlineSeconds": job.container.active_secs,
        "ttlSecondsAfterFinished": job.container.keep_secs,
    }
