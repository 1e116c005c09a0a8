"""The pods and Jobs of fleets in Kubernetes, as members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psfleet.errors import DONE, LOST_PEERS, PERMANENT_CODES, cause_of_end
from psfleet.launch.kubernetes.jobs import SUSPENDED, failed_indexes, is_suspended, place_of, verdict
from psfleet.launch.platform import Member, out_of_memory
from psfleet.manifests.kubernetes.names import COMPLETION_INDEX, COMPONENT, INSTANCE, PS, WORKER, component_name
from psfleet.service.logs import parse_line

FAILURE_COUNTS = ("batch.kubernetes.io/job-index-failure-count", "batch.kubernetes.io/job-index-ignored-failure-count")
"""Annotations of a pod; together they say how many pods of its index failed before it."""
NEEDS_USER = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
"""Reasons of a container that waits until a user acts."""
GATED = "SchedulingGated"
"""Reason of a pod that a queue holds back."""
OUT_OF_MEMORY = "OOMKilled"


class Pod:
    """A pod of a ps or a worker at one moment."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.name: str = content.metadata.name
        self.uid: str = content.metadata.uid or content.metadata.name
        self.created = float(content.metadata.creation_timestamp.timestamp())
        labels = content.metadata.labels or {}
        self.fleet: str = labels.get(INSTANCE, "")
        self.component: str = labels.get(COMPONENT, "")
        self.index = int(labels.get(COMPLETION_INDEX, -1))
        # Others may have been added to the pod, for example by a service mesh.
        self._status: Any = named(content.status.container_statuses, self.component)
        state = self._status.state if self._status is not None else None
        self._ended: Any = state.terminated if state is not None else None
        self._running: Any = state.running if state is not None else None

    @property
    def is_over(self) -> bool:
        """Whether its process has ended; containers that the cluster added may still run."""
        return self._ended is not None or self.content.status.phase in ("Succeeded", "Failed")

    @property
    def has_failed(self) -> bool:
        """Whether its process has ended, and not well."""
        return self.exit_code not in (None, DONE) or self.content.status.phase == "Failed"

    @property
    def has_node(self) -> bool:
        """Whether a node was chosen for it."""
        return bool(self.content.spec.node_name)

    @property
    def awaits_container(self) -> bool:
        """Whether its container is not there yet, and its own state does not say why."""
        is_pending = self.content.status.phase == "Pending" and self.content.metadata.deletion_timestamp is None
        return is_pending and self._running is None and not self.problem()

    @property
    def is_held(self) -> bool:
        """Whether a queue of pods holds it back."""
        return self.problem().startswith(f"{GATED}:")

    @property
    def started(self) -> float:
        """When its process began, in seconds since 1970; 0: it has not."""
        process = self._running or self._ended
        if process is None:
            return 0.0
        return float(process.started_at.timestamp()) if process.started_at is not None else self.created

    @property
    def exit_code(self) -> int | None:
        """Exit code of its process; None while it has not ended."""
        return None if self._ended is None else int(self._ended.exit_code)

    @property
    def failures_before(self) -> int:
        """How many pods of its index failed before it."""
        notes = self.content.metadata.annotations or {}
        return sum(int(notes.get(key, 0)) for key in FAILURE_COUNTS)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether its process was killed because it exceeded its memory limit."""
        return self._ended is not None and self._ended.reason == OUT_OF_MEMORY

    def state(self) -> str:
        """The state of its process, or why the process has not started."""
        if self._ended is not None:
            return OUT_OF_MEMORY if self.is_out_of_memory else f"exited ({self._ended.exit_code})"
        if self.content.metadata.deletion_timestamp is not None:
            return "terminating"
        if self._status is not None and self._status.state.waiting is not None:
            return str(self._status.state.waiting.reason)
        if self._running is not None:
            return "running"
        return str(self.content.status.reason or self.content.status.phase).lower()

    def health(self) -> str:
        """Its health by the probes, as in `Member.health`."""
        if self._running is None:
            return ""
        return "healthy" if self._status.ready else "unhealthy" if self._status.started else "starting"

    def problem(self) -> str:
        """Why its process does not start, in one line; empty if nothing is known to prevent it."""
        waiting = self._status.state.waiting if self._status is not None else None
        if waiting is not None and waiting.reason in NEEDS_USER:
            return f"{waiting.reason}: {one_line(waiting.message or self._status.image)}"
        for condition in self.content.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"{condition.reason}: {one_line(condition.message or '')}"
        return ""

    def cause(self) -> str:
        """Why it failed, in one line; empty if it did not."""
        if self._ended is None or self._ended.exit_code == DONE:
            return one_line(self.content.status.message or "") if self.content.status.phase == "Failed" else ""
        if self.is_out_of_memory:
            return out_of_memory(named(self.content.spec.containers, self.component).resources.limits["memory"])
        return _last_message(self._ended.message or "") or cause_of_end(int(self._ended.exit_code))


def pods_of(contents: Iterable[Any]) -> list[Pod]:
    """The pods of ps and workers among V1Pods: by fleet, role and index, older ones first."""
    pods = [pod for pod in map(Pod, contents) if pod.component in (PS, WORKER) and pod.index >= 0]
    return sorted(pods, key=lambda pod: (pod.fleet, pod.component, pod.index, pod.created, pod.name))


def members_of(jobs: Iterable[Any], pods: Sequence[Pod], reasons: Mapping[str, str] | None = None) -> list[Member]:
    """The members of fleets: one for each index of each V1Job, with the newest of its pods if there is one.

    Args:
        reasons: Why pods are missing or wait, by the uid of the V1Job or of the pod.
    """
    places = [(job, index) for job in sorted(jobs, key=place_of) for index in range(job.spec.completions)]
    return [_member(job, index, pods, reasons or {}) for job, index in places]


def scaled_away(jobs: Iterable[Any], pods: Sequence[Pod]) -> list[Member]:
    """One member for each index with a pod that is no longer among the completions of its V1Job."""
    return [
        _member(job, index, pods, {})
        for job in jobs
        for index in sorted({pod.index for pod in pods if (pod.fleet, pod.component) == place_of(job)})
        if index >= job.spec.completions
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
    if member.role == "chief" and ended is None:
        # Until its Job has ended, a chief is over only if its index failed: after a success the Job still removes the
        # other pods, and after a failure it makes a new pod, or ends.
        return replace(member, is_over=index in failed_indexes(job))
    return _with_verdict(member, ended)


def _of_job(job: Any, index: int) -> Member:
    """The member of an index as its V1Job describes it, without a pod."""
    name, component = place_of(job)
    has_ended = verdict(job) is not None
    return Member(
        fleet=name,
        role=PS if component == PS else "chief" if index == 0 else WORKER,
        index=index,
        name=component_name(name, component),
        # After the success of the chief, its Job removes the pods of the workers that still run.
        state="removed" if has_ended else "waiting",
        created=float(job.metadata.creation_timestamp.timestamp()),
        is_over=has_ended or index in failed_indexes(job),
        problem=SUSPENDED if is_suspended(job) else "",
        is_held=is_suspended(job),
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
        is_over=member.is_over or pod.exit_code == DONE or pod.exit_code in PERMANENT_CODES,
        health=pod.health(),
        problem=member.problem or _problem(job, pod, reasons),
        is_held=member.is_held or pod.is_held,
        needs_user=not is_suspended(job) and pod.problem().partition(":")[0] in NEEDS_USER,
        # The newest of the earlier pods that are still there.
        note=next((each.cause() for each in reversed(pods[:-1]) if each.is_out_of_memory), ""),
    )


def _problem(job: Any, pod: Pod, reasons: Mapping[str, str]) -> str:
    """Why the newest pod of an index does not start or, if it has failed, why it is not replaced."""
    if not pod.is_over:
        return pod.problem() or reasons.get(pod.uid, "")
    return reasons.get(job.metadata.uid, "") if pod.has_failed and pod.index not in failed_indexes(job) else ""


def _with_verdict(member: Member, ended: Any) -> Member:
    """Completes a member whose Job has ended: without a failure of its own, it ended as the Job did."""
    if ended is None:
        return member
    if ended.type == "Complete":
        return member if member.exit_code is not None else replace(member, exit_code=DONE)
    if member.has_failed:
        return member
    return replace(member, exit_code=LOST_PEERS, cause=f"Job failed: {ended.reason}: {one_line(ended.message or '')}")


def _last_message(text: str) -> str:
    """A termination message in one line; if it is the end of the process's log, only the message of the last entry."""
    entries = [entry for entry in map(parse_line, text.splitlines()) if entry is not None and "message" in entry]
    return one_line(str(entries[-1]["message"]) if entries else text)


def named(entries: Iterable[Any] | None, name: str) -> Any:
    """The container, or status of one, with a name; None if it is not there."""
    return next((each for each in entries or () if each.name == name), None)


def one_line(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())
