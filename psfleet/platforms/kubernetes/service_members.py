"""The members of services in Kubernetes, from their Deployments and pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psfleet.errors import DONE, UsageError
from psfleet.job.activity import SERVICE
from psfleet.launch.platform import Member
from psfleet.manifests.kubernetes.names import ACTIVITY, ACTIVITY_KEY, CHIEF, FRONT, RUN, SERVICE_INDEX, WORKER
from psfleet.platforms.kubernetes.api import Cluster, ForbiddenError, label_selector, translate_errors
from psfleet.platforms.kubernetes.jobs import place_of
from psfleet.platforms.kubernetes.pods import NEEDS_USER, Pod, one_line, pods_of

NOT_CREATED = "ReplicaFailure"
"""Condition of a Deployment whose pod is refused."""
STOPPED = "its Deployment is scaled to 0"
"""Why there is no pod of a front that `psfleet down` has stopped, or that a user has."""


def deployments_of(cluster: Cluster, name: str | None) -> list[Any]:
    """V1Deployments of a service, or of all; none without the right to list them, which older Roles lack.

    Raises:
        ForbiddenError: The right is missing, and there is a service of this name: without its Deployments, it would be
            taken for a fleet that is down.
    """
    try:
        with translate_errors("list the Deployments of services"):
            listed = cluster.apps.list_namespaced_deployment(cluster.namespace, label_selector=label_selector(name))
            return list(listed.items)
    except ForbiddenError:
        if name is not None and _is_service(cluster, name):
            raise
        return []


def _is_service(cluster: Cluster, name: str) -> bool:
    """Whether the ConfigMap of a fleet is that of a service, of any version of psfleet."""
    content = json.loads(cluster.config_map(name, RUN).get(ACTIVITY_KEY, "{}"))
    return bool(content.get("kind") == SERVICE)


def removable(cluster: Cluster, name: str, results: bool) -> list[Any]:
    """Those V1PersistentVolumeClaims of a fleet that go with it: all, or only that of a service, which has copies.

    Args:
        results: Whether checkpoints and reports are deleted, too.

    Raises:
        UsageError: Another fleet mounts one of them. Kubernetes would delete it only after that fleet, and start no
            further pod of it.
    """
    labelled = [(each, each.metadata.labels or {}) for each in cluster.claims(name)]
    found = [each for each, labels in labelled if results or labels.get(ACTIVITY) == SERVICE]
    names = {each.metadata.name for each in found}
    others = [pod for pod in pods_of(cluster.pods(None)) if pod.fleet != name and not pod.is_over] if found else []
    users = sorted({pod.fleet for pod in others if pod.claims & names})
    if users:
        raise UsageError(
            f"the volume of fleet {name} is mounted by {' and '.join(users)}, expected by no other fleet: "
            f"`psfleet down {users[0]}` first"
        )
    return found


def service_members(
    deployments: Iterable[Any], pods: Sequence[Pod], reasons: Mapping[str, str] | None = None
) -> list[Member]:
    """The front and the members of services: one for each V1Deployment, with the newest of its pods if there is one.

    Args:
        reasons: Why pods wait, by their uids.
    """
    members = [_member(each, pods, reasons or {}) for each in deployments]
    return sorted(members, key=lambda each: (each.fleet, each.role, each.index or 0))


def _member(deployment: Any, all_pods: Sequence[Pod], reasons: Mapping[str, str]) -> Member:
    meta = deployment.metadata
    fleet, component = place_of(deployment)
    index = int(meta.labels[SERVICE_INDEX])
    member = Member(
        fleet=fleet,
        # The front is what a platform knows as the chief: see `psfleet.job.activity.shown_role`.
        role=CHIEF if component == FRONT else WORKER,
        index=index,
        name=meta.name,
        state="waiting",
        created=float(meta.creation_timestamp.timestamp()),
        activity=meta.labels.get(ACTIVITY, ""),
    )
    pods = [pod for pod in all_pods if (pod.fleet, pod.component, pod.index) == (fleet, component, index)]
    if pods:
        return _of_pod(member, pods[-1], reasons)
    if deployment.spec.replicas == 0:
        # As `psfleet down` leaves a front if it is interrupted.
        return replace(member, state="stopped", is_over=True, needs_user=component == FRONT, problem=STOPPED)
    return replace(member, problem=_refusal(deployment))


def _of_pod(member: Member, pod: Pod, reasons: Mapping[str, str]) -> Member:
    """A member, completed from its pod. The kubelet starts its process again, whatever ended it, after a pause."""
    before, cause = pod.end_before
    # Between two processes, the last one is that before.
    exit_code, cause_of_end = (before, cause) if pod.is_between_processes else (pod.exit_code, pod.cause())
    return replace(
        member,
        name=pod.name,
        state=pod.state(),
        started=pod.started,
        exit_code=exit_code,
        cause=cause_of_end,
        restarts=pod.container_restarts,
        health=_health(pod),
        problem=pod.problem() or reasons.get(pod.uid, ""),
        needs_user=pod.problem().partition(":")[0] in NEEDS_USER,
        note=cause if before not in (None, DONE) else "",
    )


def _health(pod: Pod) -> str:
    """As of its probes; that of a pod which ends, or whose node is lost, says how it was before."""
    found = pod.health()
    return "unhealthy" if found == "healthy" and not pod.takes_traffic else found


def _refusal(deployment: Any) -> str:
    """Why a Deployment has no pod, in one line; empty: that is not known."""
    conditions = deployment.status.conditions or ()
    found = (each for each in conditions if each.type == NOT_CREATED and each.status == "True")
    return next((f"{each.reason}: {one_line(each.message or '')}" for each in found), "")
