"""Renders a job as Kubernetes objects: Indexed Jobs and the objects that they need; needs no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from psfleet.addresses import num_own_ps
from psfleet.errors import BAD_JOB, PERMANENT_CODES, STOPPED
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import (
    CHIEF,
    COMPONENT,
    JOB_KEY,
    LOADER,
    ON_FLEET,
    PS,
    RUN_ID,
    WORKER,
    component_name,
    labels,
    require_service_name,
    role_of,
    selector,
)
from psfleet.manifests.kubernetes.network_policies import run_policies
from psfleet.manifests.kubernetes.pod_settings import apply_settings, service_account
from psfleet.manifests.kubernetes.pod_template import Object, ports, template
from psfleet.manifests.kubernetes.program_configmap import Files
from psfleet.manifests.on_fleet import OnFleet
from psfleet.manifests.yaml_text import comment, dump, job_text

HEADER = """\
# A psfleet fleet, made from a job file by
#   {command}
# Change the job file and render again.
"""
FETCH_SECS = 300
"""How long ended Jobs are kept at least, so that `psfleet up` sees their end and copies the results."""


def manifests_text(job: Job, job_file: Path, command: str) -> str:
    """All objects as YAML.

    Args:
        job_file: Its folder is the training program's.
        command: The command line that renders this text, for its header.

    Raises:
        UsageError: The program does not fit into a ConfigMap.
    """
    return HEADER.format(command=comment(command)) + dump(*render(job, job_file))


def render(job: Job, job_file: Path, paused: bool = False, place: OnFleet | None = None) -> list[Object]:
    """All objects of a fleet; see `manifests_text`.

    Args:
        job: What is trained.
        job_file: Its folder is the training program's.
        paused: Whether the run is held at the step that it starts from.
        place: On a standing fleet of the namespace; None: the run has no ps of one.

    Raises:
        BadJobError: No Service can have the job's name.
    """
    require_service_name(job.name)
    files = Files.of(job_file.parent.resolve()) if job.container.program == "mount" else None
    sizes = {PS: num_own_ps(job), LOADER: job.input.num_loaders, WORKER: job.fleet.processes}
    roles = [role for role, size in sizes.items() if size]
    objects = [
        fleet_object("v1", "ServiceAccount", job, role, automountServiceAccountToken=False)
        for role in roles
        if service_account(job.kubernetes, role) is None
    ]
    objects += [_config(job), claim(job), headless_service(job, ports(job)), *run_policies(job, place)]
    if job.fleet.colocate or PS in roles:
        objects.append(_disruption_budget(job))
    if PS in roles:
        objects.append(_ps(job))
    program = files.items() if files is not None else None
    if LOADER in roles:
        objects.append(_loaders(job, program, place))
    if job.fleet.processes > 1:
        objects.append(workers_job(job, program, job.fleet.processes - 1, place))
    objects.append(_chief(job, program, paused, place))
    # The program's files come last in the text, because they may be long.
    return [*objects, files.config_map(job.name)] if files is not None else objects


def fleet_object(version: str, kind: str, job: Job, component: str | None = None, **rest: Any) -> Object:
    """An object of a fleet, or of one of its components."""
    name = job.name if component is None else component_name(job.name, component)
    meta = {"name": name, "labels": labels(job.name, component)}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **rest}


def _config(job: Job) -> Object:
    return fleet_object("v1", "ConfigMap", job, data={JOB_KEY: job_text(job)})


def claim(job: Job) -> Object:
    """The volume for checkpoints, reports and TensorBoard; it outlives the run."""
    spec: Object = {
        "accessModes": [job.container.access_mode],
        "resources": {"requests": {"storage": job.container.storage}},
    }
    if job.container.storage_class is not None:
        spec["storageClassName"] = job.container.storage_class
    return fleet_object("v1", "PersistentVolumeClaim", job, spec=spec)


def headless_service(job: Job, numbers: Mapping[str, int]) -> Object:
    """Gives each pod a DNS name, also before it is ready: workers configure the ps. `numbers` are ports by name."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(job.name)}
    named = [{"name": name, "port": port} for name, port in numbers.items()]
    return fleet_object("v1", "Service", job, spec={**spec, "ports": named})


def _disruption_budget(job: Job) -> Object:
    """Lets only one ps be evicted at a time. `maxUnavailable` would say it better, but is not allowed for a Job."""
    of_workers = {"key": COMPONENT, "operator": "In", "values": [CHIEF, WORKER]}
    colocated: Object = {"matchLabels": selector(job.name), "matchExpressions": [of_workers]}
    spec = {
        "minAvailable": job.fleet.ps - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": colocated if job.fleet.colocate else {"matchLabels": selector(job.name, PS)},
    }
    return fleet_object("policy/v1", "PodDisruptionBudget", job, PS, spec=spec)


def _ps(job: Job) -> Object:
    return job_object(job, PS, job.fleet.ps, end_on(PS, PERMANENT_CODES), template(job, PS, None), maxFailedIndexes=0)


def _loaders(job: Job, program: list[Object] | None, place: OnFleet | None) -> Object:
    """The Job of the loaders. Any of them is needed: a worker whose loader is lost waits for it, or burdens another."""
    rules, pod = end_on(LOADER, PERMANENT_CODES), template(job, LOADER, program, place)
    return job_object(job, LOADER, job.input.num_loaders, rules, pod, maxFailedIndexes=0)


def _chief(job: Job, program: list[Object] | None, paused: bool, place: OnFleet | None) -> Object:
    """The Job of worker 0, whose end is that of the run; its labels have the place of the run on a standing fleet."""
    pod = template(job, CHIEF, program, place)
    content = job_object(job, CHIEF, 1, end_on(CHIEF, PERMANENT_CODES), pod, maxFailedIndexes=0)
    containers = content["spec"]["template"]["spec"]["containers"]
    own = next(each for each in containers if each["name"] == CHIEF)
    own["env"] += [{"name": name, "value": value} for name, value in container.hold(paused).items()]
    if place is not None:
        content["metadata"]["labels"] |= {ON_FLEET: place.fleet, RUN_ID: place.run}
    return content


def workers_job(job: Job, program: list[Object] | None, pods: int, place: OnFleet | None = None) -> Object:
    """The Job of the workers and spares other than worker 0.

    A worker ends well only once the run is over. The Job is complete when so many have that, with the chief, they make
    a step: the run may have ended without the others, which may not even have a node. It removes those that still run.
    A worker that is refused (78), or whose restarts are used up, is over, and the Job is not: whether enough are left
    for a step depends on how the fleet is scaled.

    Args:
        program, place: See `template`.
        pods: Number of these workers and spares.
    """
    refused = {"action": "FailIndex", "onExitCodes": codes(WORKER, [BAD_JOB])}
    rules = [*end_on(WORKER, PERMANENT_CODES - {BAD_JOB}), refused]
    # At most the completions, as the API demands, since a fleet cannot be scaled to fewer than `least_workers`.
    enough = {"succeededCount": max(1, job.least_workers - 1)}
    pod = template(job, WORKER, program, place)
    return job_object(job, WORKER, pods, rules, pod, successPolicy={"rules": [enough]})


def job_object(job: Job, component: str, pods: int, rules: list[Object], made: Object, **further: Any) -> Object:
    """A Job of `pods` pods.

    Args:
        rules: Those of its podFailurePolicy about exit codes that a retry does not mend.
        made: The template of its pods.
    """
    pod = apply_settings(job.kubernetes, role_of(component), made)
    spec = {**_job_spec(job, component, pods, rules), **further, "template": pod}
    content = fleet_object("batch/v1", "Job", job, component, spec=spec)
    content["metadata"]["labels"] = {**job.kubernetes.job_labels, **content["metadata"]["labels"]}
    if job.kubernetes.job_annotations:
        content["metadata"]["annotations"] = dict(job.kubernetes.job_annotations)
    return content


def _job_spec(job: Job, component: str, pods: int, rules: list[Object]) -> Object:
    """The settings that all Jobs share. `suspend` is left to a queue of jobs (Kueue).

    A pod is replaced only after it has ended, so there are never two of one index. The Job restarts, not the kubelet,
    because only a Job distinguishes exit codes. Permanent ones are not retried. Ends that have a cause outside the pod
    are not counted against the limit of restarts: `psfleet down`, and pods that are deleted, evicted or suspended.
    """
    uncounted = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": codes(component, STOPPED)},
    ]
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimitPerIndex": job.fleet.max_restarts,
        "podFailurePolicy": {"rules": [*rules, *uncounted]},
        "podReplacementPolicy": "Failed",
        "activeDeadlineSeconds": job.container.active_secs,
        "ttlSecondsAfterFinished": max(job.container.keep_secs, FETCH_SECS),
    }


def end_on(component: str, permanent: Iterable[int]) -> list[Object]:
    """The rule by which exit codes end a Job at once."""
    return [{"action": "FailJob", "onExitCodes": codes(component, permanent)}]


def codes(component: str, numbers: Iterable[int]) -> Object:
    """Exit codes of a component's own container, not of one that the cluster adds to the pod."""
    return {"containerName": component, "operator": "In", "values": sorted(numbers)}
