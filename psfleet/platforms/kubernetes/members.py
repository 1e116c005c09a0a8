"""The members of fleets in Kubernetes, from their Jobs and pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psfleet.errors import DONE, LOST_PEERS, PERMANENT_CODES
from psfleet.launch.platform import Member
from psfleet.manifests.kubernetes.names import ACTIVITY, CHIEF, INSTANCE, TRAINING, component_name, first_index
from psfleet.platforms.kubernetes.jobs import (
    COMPLETE,
    SUSPENDED,
    failed_indexes,
    is_complete,
    is_suspended,
    num_indexes,
    on_fleet,
    place_of,
    verdict,
)
from psfleet.platforms.kubernetes.pods import NEEDS_USER, Pod, one_line

FINAL_CODES = frozenset({DONE, *PERMANENT_CODES})
"""Exit codes after which no process of an index is started again."""


def members_of(jobs: Iterable[Any], pods: Sequence[Pod], reasons: Mapping[str, str] | None = None) -> list[Member]:
    """The members of fleets: one for each index of each V1Job, with the newest of its pods if there is one.

    Args:
        reasons: Why pods are missing or wait, by the uid of the V1Job or of the pod.
    """
    ordered = sorted((job for job in jobs if place_of(job)[1] in TRAINING), key=_order)
    done = {job.metadata.labels[INSTANCE] for job in ordered if place_of(job)[1] == CHIEF and is_complete(job)}
    members = [_member(job, index, pods, reasons or {}) for job in ordered for index in range(num_indexes(job))]
    return [_not_missed(member) if member.fleet in done else member for member in members]


def _order(job: Any) -> tuple[str, int]:
    """Sorts V1Jobs by fleet: that of the ps, of the chief, of the other workers."""
    fleet, component = place_of(job)
    return fleet, TRAINING.index(component)


def scaled_away(jobs: Iterable[Any], pods: Sequence[Pod]) -> list[Member]:
    """One member for each index with a pod that is no longer among the completions of its V1Job."""
    return [
        _member(job, index, pods, {})
        for job in jobs
        for index in sorted({pod.index for pod in pods if (pod.fleet, pod.component) == place_of(job)})
        if index >= num_indexes(job)
    ]


def _member(job: Any, index: int, all_pods: Sequence[Pod], reasons: Mapping[str, str]) -> Member:
    """The member of one index of a V1Job, from the Job and, if there is one, from the newest pod of that index."""
    pods = [pod for pod in all_pods if (pod.fleet, pod.component, pod.index) == (*place_of(job), index)]
    member = _of_job(job, index)
    if pods:
        member = _of_pods(member, job, pods, reasons)
    elif not member.problem:
        member = replace(member, problem=reasons.get(job.metadata.uid, ""))
    if is_suspended(job) and (not pods or pods[-1].is_over):
        member = replace(member, state="suspended")
    ended = verdict(job)
    if member.role == CHIEF and ended is None:
        # Until its Job has ended, a chief is over only if its index failed: after a failure the Job makes a new pod, or
        # ends. It does neither while a container that the cluster added keeps the pod.
        is_kept = bool(pods) and pods[-1].kept_by != "" and member.exit_code in FINAL_CODES
        return replace(member, is_over=is_kept or index in failed_indexes(job))
    return _with_verdict(member, ended)


def _of_job(job: Any, index: int) -> Member:
    """The member of an index as its V1Job describes it, without a pod."""
    name, component = place_of(job)
    has_ended = verdict(job) is not None
    activity = job.metadata.labels.get(ACTIVITY, "")
    return Member(
        fleet=name,
        role=component,
        index=first_index(component, activity) + index,
        name=component_name(name, component),
        # A Job of workers that is complete removes the pods of those that still run.
        state="removed" if has_ended else "waiting",
        created=float(job.metadata.creation_timestamp.timestamp()),
        is_over=has_ended or index in failed_indexes(job),
        problem=SUSPENDED if is_suspended(job) else "",
        is_held=is_suspended(job),
        run="" if (place := on_fleet(job)) is None else place.run,
        activity=activity,
    )


def _of_pods(member: Member, job: Any, pods: Sequence[Pod], reasons: Mapping[str, str]) -> Member:
    """A member of a V1Job, completed from the pods of its index, older ones first."""
    pod = pods[-1]
    return replace(
        member,
        name=pod.name,
        state=pod.state(),
        started=pod.started,
        # The status of an evicted pod may lack its process.
        exit_code=LOST_PEERS if pod.exit_code is None and pod.cause() else pod.exit_code,
        cause=pod.cause(),
        restarts=pod.failures_before,
        is_over=member.is_over or pod.exit_code in FINAL_CODES,
        health=pod.health(),
        problem=member.problem or _problem(job, pod, reasons),
        is_held=member.is_held or pod.is_held,
        needs_user=not is_suspended(job) and pod.problem().partition(":")[0] in NEEDS_USER,
        # The newest of the earlier pods that are still there.
        note=next((each.cause() for each in reversed(pods[:-1]) if each.is_out_of_memory), ""),
    )


def _problem(job: Any, pod: Pod, reasons: Mapping[str, str]) -> str:
    """Why the newest pod of an index does not start or, if it has failed, why it is not replaced."""
    if pod.kept_by and pod.exit_code not in FINAL_CODES:
        return f"container {pod.kept_by}, which the cluster has added, still runs: the Job cannot replace the pod"
    if not pod.is_over:
        return reasons.get(pod.uid, "") or pod.problem()
    return reasons.get(job.metadata.uid, "") if pod.has_failed and pod.index not in failed_indexes(job) else ""


def _with_verdict(member: Member, ended: Any) -> Member:
    """A member after the end of its Job; unless its own process failed, it has the outcome of the Job."""
    if ended is None:
        return member
    if ended.type == COMPLETE:
        return _not_missed(member) if member.exit_code is not None else replace(member, exit_code=DONE)
    if member.has_failed:
        return member
    return replace(member, exit_code=LOST_PEERS, cause=f"Job failed: {ended.reason}: {one_line(ended.message or '')}")


def _not_missed(member: Member) -> Member:
    """A member of a run that is done; a failure of its process is left out, because the run did not need it."""
    return replace(member, exit_code=DONE, cause="") if member.has_failed else member
