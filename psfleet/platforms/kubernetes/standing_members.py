"""The members of standing fleets in Kubernetes, from their StatefulSets and pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psfleet.errors import DONE, PERMANENT_CODES, LostPeerError
from psfleet.launch.platform import Member
from psfleet.manifests.kubernetes.names import CLIENT, PS, WORKER, component_name
from psfleet.platforms.kubernetes.jobs import place_of
from psfleet.platforms.kubernetes.pods import NEEDS_USER, Pod

SERVING = (PS, WORKER)


def standing_members(sets: Iterable[Any], pods: Sequence[Pod], reasons: Mapping[str, str]) -> list[Member]:
    """The members of standing fleets: one for each index of each V1StatefulSet, and one for each pod of a client.

    Args:
        reasons: Why pods are missing or wait, by the uid of the V1StatefulSet or of the pod.
    """
    members = []
    for each in sets:
        fleet, role = place_of(each)
        found = {pod.index: pod for pod in pods if (pod.fleet, pod.component) == (fleet, role)}
        members += [_member(each, index, found.get(index), reasons) for index in range(each.spec.replicas)]
    members += [_of_pod(_client(pod), pod, reasons) for pod in pods if pod.component == CLIENT]
    order = (*SERVING, CLIENT)
    return sorted(members, key=lambda each: (each.fleet, order.index(each.role), each.index or 0, each.name))


def lacks_pods(stateful_set: Any, pods: Sequence[Pod]) -> bool:
    """Whether a V1StatefulSet has an index without a pod."""
    return bool(set(range(stateful_set.spec.replicas)) - {pod.index for pod in pods})


def require_lasting(name: str, pods: Sequence[Pod]) -> None:
    """Checks that no process of a fleet has ended with an exit code with which it would only end again.

    Raises:
        LostPeerError: One has.
    """
    for pod in pods:
        code, cause = pod.end_before if pod.exit_code is None else (pod.exit_code, pod.cause())
        if pod.component in SERVING and code in PERMANENT_CODES:
            end = f"exit code {code}"
            raise LostPeerError(f"fleet {name}: pod {pod.name} failed: {cause if cause == end else f'{cause} ({end})'}")


def not_serving(members: Sequence[Member]) -> str:
    """The first ps or worker that does not serve, and why, those with a reason first; empty: all do."""
    waiting = [each for each in members if each.role in SERVING and each.health != "healthy"]
    if not waiting:
        return "" if members else "no StatefulSet"
    first = next((each for each in waiting if each.problem), waiting[0])
    return f"pod {first.name}: {first.problem or first.note or first.state}"


def _member(stateful_set: Any, index: int, pod: Pod | None, reasons: Mapping[str, str]) -> Member:
    fleet, role = place_of(stateful_set)
    member = Member(
        fleet=fleet,
        role=role,
        index=index,
        name=f"{component_name(fleet, role)}-{index}",
        state="waiting",
        created=float(stateful_set.metadata.creation_timestamp.timestamp()),
    )
    if pod is None:
        return replace(member, problem=reasons.get(stateful_set.metadata.uid, ""))
    return _of_pod(member, pod, reasons)


def _client(pod: Pod) -> Member:
    return Member(
        fleet=pod.fleet,
        role=CLIENT,
        index=None,
        name=pod.name,
        state="",
        created=pod.created,
        exit_code=pod.exit_code,
        cause=pod.cause(),
        is_over=pod.is_over,
    )


def _of_pod(member: Member, pod: Pod, reasons: Mapping[str, str]) -> Member:
    """A member, completed from its pod. The kubelet starts the container of a ps or worker again, whatever ended it."""
    code, cause = pod.end_before
    return replace(
        member,
        name=pod.name,
        state=pod.state(),
        started=pod.started,
        restarts=pod.container_restarts,
        health=pod.health(),
        problem=pod.problem() or reasons.get(pod.uid, ""),
        needs_user=pod.problem().partition(":")[0] in NEEDS_USER,
        note=cause if code not in (None, DONE) else "",
    )
