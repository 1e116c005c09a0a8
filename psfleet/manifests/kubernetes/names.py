"""Names of a fleet's objects in Kubernetes, and the labels that select them."""

from __future__ import annotations

from psfleet.addresses import DATA_PORT, Address, num_own_ps, ps_addresses
from psfleet.errors import BadJobError
from psfleet.job.job import Job

INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
RUN, STANDING = "psfleet", "psfleet-fleet"
"""Values of PART_OF: objects of the fleet of a run, and of a standing fleet, which may have the same name."""
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label of the pods of a StatefulSet."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
"""Label of the pods of an Indexed Job."""
PS, LOADER, CHIEF, WORKER, RESULTS = "ps", "loader", "chief", "worker", "results"
"""Components: the Jobs of the ps, of the loaders, of worker 0, and of the other workers; and the pod that reads the
volume."""
TRAINING = (PS, LOADER, CHIEF, WORKER)
FRONT, MEMBER = "front", "member"
"""Components of a service: the Deployments of the front, and of each member."""
SERVICE_INDEX = "psfleet.index"
"""Label of the Deployment and the pods of the front or a member: its index."""
MODEL_CLAIM = "psfleet.model-claim"
"""Label of the pods of a service that mount the claim of this name, which only one node can mount at a time."""
CLIENT = "client"
"""Component of the pods of a standing fleet's clients."""
RENEWED = "psfleet.renewed"
"""Annotation of such a pod: when `psfleet run` renewed it. Its script ends if that stops."""
FIRST_INDEX = {PS: 0, LOADER: 0, CHIEF: 0, WORKER: 1}
"""Index of a process that has the completion index 0 of its Job, by component of a run."""
ON_FLEET = "psfleet.on-fleet"
"""Label of the chief's Job of a run that trains on the ps of a standing fleet: the fleet's name."""
RUN_ID = "psfleet.run"
"""Label of the same Job: the run's id, which distinguishes it from an earlier run of its name."""
JOB_KEY = "job.json"
"""Key of the resolved job in the fleet's ConfigMap."""
ACTIVITY_KEY = "activity.json"
"""Key of what a fleet does instead of training, in the same ConfigMap."""
ACTIVITY = "psfleet.activity"
"""Label of the Jobs, pods and volume of such a fleet: the kind of its activity."""
PROGRAM_VOLUME = "program"
"""Volume of a worker's pod with the files of `program_map`."""


def require_service_name(name: str) -> None:
    """Checks that a Service can have the name of a job or fleet.

    Raises:
        BadJobError: It begins with a digit, which Kubernetes refuses.
    """
    if not name[0].isalpha():
        raise BadJobError(f"name is {name!r}, expected one that begins with a letter: on Kubernetes it names a Service")


def first_index(component: str, activity: str) -> int:
    """Index of a process with the completion index 0: a driver counts its workers from 0.

    Args:
        activity: The kind of the fleet's activity; empty: it trains.
    """
    return 0 if activity else FIRST_INDEX[component]


def role_of(component: str) -> str:
    """The role of a Job's pods: limits, certificate, ServiceAccount and settings are by role."""
    return component if component in (PS, LOADER) else WORKER


def labels(name: str, component: str | None = None, part_of: str = RUN) -> dict[str, str]:
    """The labels of an object of a fleet, or of one of its components.

    Args:
        part_of: RUN or STANDING.
    """
    of_psfleet = {"app.kubernetes.io/name": "psfleet", PART_OF: part_of, MANAGED_BY: "psfleet"}
    return of_psfleet | selector(name, component, part_of)


def selector(name: str, component: str | None = None, part_of: str = RUN) -> dict[str, str]:
    """The labels that select the pods of a fleet, or of one of its components; `part_of` as for `labels`."""
    selected = {INSTANCE: name, PART_OF: part_of}
    return selected if component is None else {**selected, COMPONENT: component}


def selector_text(selected: dict[str, str]) -> str:
    """Labels as the text of a selector, `key=value,key=value`."""
    return ",".join(f"{key}={value}" for key, value in selected.items())


def component_name(name: str, component: str) -> str:
    """Name of the Job of a component, and of the ServiceAccount of a role."""
    return f"{name}-{component}"


def program_map(name: str) -> str:
    """Name of the ConfigMap with the training program's files: with a dot, which names of jobs do not have."""
    return f"{name}.program"


def on_fleet_policy(name: str) -> str:
    """Name of a run's NetworkPolicy for the ps of a standing fleet: with a dot, which names of jobs do not have."""
    return f"{name}.on-fleet"


def own_policy(name: str, component: str) -> str:
    """Name of a run's NetworkPolicy for the pods of a component alone: with a dot, too."""
    return f"{name}.{component}"


def replica_policy(name: str, replica: int, component: str) -> str:
    """Name of a run's NetworkPolicy for the pods of a component that are parts of a replica: with a dot, too."""
    return f"{name}.{component}-of-replica-{replica}"


def tls_secret(name: str, component: str) -> str:
    """Name of the Secret with the certificate of a role."""
    return f"{name}-{component}-tls"


def addresses(job: Job) -> list[Address]:
    """The addresses of all ps within their namespace."""
    ps = [_pod_address(job, PS, index) for index in range(num_own_ps(job))]
    others = range(job.fleet.processes - FIRST_INDEX[WORKER])
    workers = [_pod_address(job, CHIEF, 0), *[_pod_address(job, WORKER, index) for index in others]]
    return ps_addresses(job, ps, workers)


def loader_addresses(job: Job) -> list[Address]:
    """As `addresses`, of the loaders, and of those that `psfleet scale` can add."""
    return [_pod_address(job, LOADER, index) for index in range(job.most_loaders)]


def _pod_address(job: Job, component: str, index: int) -> Address:
    """Of a pod of a component's Indexed Job, whose host name has its completion index."""
    return Address(f"{component_name(job.name, component)}-{index}.{job.name}", DATA_PORT)


def client_name(name: str, index: int) -> str:
    """Name of the pod of a client of a standing fleet; no two clients have one index at the same time."""
    return f"{component_name(name, CLIENT)}-{index}"
