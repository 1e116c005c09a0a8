"""Names of a fleet's objects in Kubernetes, and the labels that select them."""

from __future__ import annotations

from psfleet.addresses import DATA_PORT, Address, num_own_ps, ps_addresses
from psfleet.job.job import Job

INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
OF_PSFLEET = {"app.kubernetes.io/name": "psfleet", "app.kubernetes.io/part-of": "psfleet", MANAGED_BY: "psfleet"}
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
"""Label of the pods of an Indexed Job."""
PS, WORKER, RESULTS = "ps", "worker", "results"
"""Components: the two Jobs, and the pod that reads the volume."""

JOB_KEY = "job.json"


def labels(name: str, component: str | None = None) -> dict[str, str]:
    """Of an object of the fleet of a name; of one of its components."""
    found = {**OF_PSFLEET, INSTANCE: name}
    return found if component is None else {**found, COMPONENT: component}


def selector(name: str, component: str | None = None) -> dict[str, str]:
    """The labels by which pods of a fleet are chosen."""
    found = {INSTANCE: name, "app.kubernetes.io/part-of": "psfleet"}
    return found if component is None else {**found, COMPONENT: component}


def text(chosen: dict[str, str]) -> str:
    """Labels as a selector's text."""
    return ",".join(f"{key}={value}" for key, value in chosen.items())


def member(name: str, component: str) -> str:
    """The Job and the ServiceAccount of a component."""
    return f"{name}-{component}"


def program_map(name: str) -> str:
    """The ConfigMap with the training program's files."""
    return f"{name}-program"


def tls_secret(name: str, component: str) -> str:
    """The Secret with the certificate of a role."""
    return f"{name}-{component}-tls"


def addresses(job: Job) -> list[Address]:
    """Of all ps, as every pod in their namespace finds them: Indexed Jobs name their pods' hosts after the index."""
    hosts = (f"{member(job.name, PS)}-{index}.{job.name}" for index in range(num_own_ps(job)))
    return ps_addresses(job, [Address(host, DATA_PORT) for host in hosts])
