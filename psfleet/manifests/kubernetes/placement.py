"""Which pods of a fleet mount the volume of the results, and on which nodes pods may therefore run."""

from __future__ import annotations

from typing import Any

from psfleet.job.job import Job
from psfleet.manifests.kubernetes.names import (
    CHIEF,
    COMPONENT,
    LOADER,
    MODEL_CLAIM,
    PS,
    RESULTS,
    TRAINING,
    WORKER,
    selector,
)

Object = dict[str, Any]

NODE = "kubernetes.io/hostname"
"""Label of nodes: two pods have the same value if they run on one node."""
TENSORBOARD = "tensorboard"
"""The component of k8s/components/tensorboard, whose pod reads the volume."""


def mounts_results(job: Job, component: str) -> bool:
    """Whether the pods of a component mount the volume: the chief's, and ps and workers if the job says that they do.

    The chief has a Job of its own, because all pods of a Job have the same volumes.
    """
    return component == CHIEF or (job.checkpoint.shared and component != LOADER)


def same_node_affinity(job: Job) -> Object:
    """All pods that mount the disk on one node: no other can mount it, and the scheduler does not check that.

    The first pod, and the reader of a fleet that is down, have the labels themselves: the scheduler lets a pod whose
    term only matches itself on any node. It prefers that of a service of the results, if there is one.
    """
    training = [component for component in TRAINING if mounts_results(job, component)]
    mounting = {"key": COMPONENT, "operator": "In", "values": [*training, RESULTS, TENSORBOARD]}
    pods = {"matchLabels": selector(job.name), "matchExpressions": [mounting]}
    term = {"topologyKey": NODE, "labelSelector": pods}
    return {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term],
            "preferredDuringSchedulingIgnoredDuringExecution": [_near({"matchLabels": {MODEL_CLAIM: job.name}})],
        }
    }


def near_results(fleet: str) -> Object:
    """Terms of a pod affinity: the node of those pods that mount the results of another fleet, while there are any.

    A required term would keep the pod from every node once that fleet, and services of its results, have ended.
    """
    terms = [_near_training(fleet), _near({"matchLabels": {MODEL_CLAIM: fleet}})]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def beside_claim(fleet: str) -> Object:
    """As `same_node_affinity`, for pods of services that mount the results of a fleet, and have the label for it."""
    term = {"topologyKey": NODE, "labelSelector": {"matchLabels": {MODEL_CLAIM: fleet}}}
    return {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term],
            "preferredDuringSchedulingIgnoredDuringExecution": [_near_training(fleet)],
        }
    }


def _near_training(fleet: str) -> Object:
    mounting = {"key": COMPONENT, "operator": "In", "values": [CHIEF, RESULTS, TENSORBOARD]}
    return _near({"matchLabels": selector(fleet), "matchExpressions": [mounting]})


def _near(pods: Object) -> Object:
    """The preferred term for the node of some pods."""
    return {"weight": 100, "podAffinityTerm": {"topologyKey": NODE, "labelSelector": pods}}


def spread(job: Job, component: str) -> Object:
    """The ps, loaders, or all workers, on as many nodes as have room for them: a lost node takes few of them."""
    alike = [component] if component in (PS, LOADER) else [CHIEF, WORKER]
    counted = {"key": COMPONENT, "operator": "In", "values": alike}
    return {
        "maxSkew": 1,
        "topologyKey": NODE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(job.name), "matchExpressions": [counted]},
    }
