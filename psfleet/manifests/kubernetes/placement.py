"""Which pods of a fleet mount the volume of the results, and on which nodes pods may therefore run."""

from __future__ import annotations

from typing import Any

from psfleet.job.job import Job
from psfleet.manifests.kubernetes.names import COMPONENT, PS, RESULTS, WORKER, selector

Object = dict[str, Any]

NODE = "kubernetes.io/hostname"
"""Label of nodes: two pods have the same value if they run on one node."""
TENSORBOARD = "tensorboard"
"""The component of k8s/components/tensorboard, whose pod reads the volume."""


def mounts_results(job: Job, role: str) -> bool:
    """Whether the pods of a role mount the volume. The ps only do if all of them write to it.

    Worker 0 needs it as the chief, and all pods of an Indexed Job have the same volumes.
    """
    return role == WORKER or job.checkpoint.shared


def same_node_affinity(job: Job) -> Object:
    """All pods that mount the disk on one node: no other can mount it, and the scheduler does not check that.

    The first pod, and the reader of a fleet that is down, have the labels themselves: the scheduler lets a pod whose
    term only matches itself on any node.
    """
    roles = [role for role in (PS, WORKER) if mounts_results(job, role)]
    mounting = {"key": COMPONENT, "operator": "In", "values": [*roles, RESULTS, TENSORBOARD]}
    pods = {"matchLabels": selector(job.name), "matchExpressions": [mounting]}
    term = {"topologyKey": NODE, "labelSelector": pods}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def spread(job: Job, role: str) -> Object:
    """The pods of a role on as many nodes as have room for them: a node that is lost takes few of them."""
    return {
        "maxSkew": 1,
        "topologyKey": NODE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(job.name, role)},
    }
