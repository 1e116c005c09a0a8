"""The pods of fleets in Kubernetes: the states of their processes, and why these do not start or have failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psfleet.errors import DONE, cause_of_end
from psfleet.launch.platform import out_of_memory
from psfleet.manifests.kubernetes.names import (
    COMPLETION_INDEX,
    COMPONENT,
    FRONT,
    INSTANCE,
    MEMBER,
    POD_INDEX,
    SERVICE_INDEX,
    TRAINING,
)
from psfleet.service.logs import parse_line

OF_FLEETS = (*TRAINING, FRONT, MEMBER)
"""Components of runs and services whose pods run psfleet's processes."""
FAILURE_COUNTS = ("batch.kubernetes.io/job-index-failure-count", "batch.kubernetes.io/job-index-ignored-failure-count")
"""Annotations of a pod; together they say how many pods of its index failed before it."""
NEEDS_USER = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
"""Reasons of a container that waits until a user acts."""
GATED = "SchedulingGated"
"""Reason of a pod that a queue holds back."""
UNBOUND = "unbound immediate PersistentVolumeClaims"
"""In the message of a pod that no node takes for that reason."""
OUT_OF_MEMORY = "OOMKilled"


class Pod:
    """A pod of a process at one moment; its `index` is that in its Job, StatefulSet or service, -1: it has none."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.name: str = content.metadata.name
        self.uid: str = content.metadata.uid or content.metadata.name
        self.created = float(content.metadata.creation_timestamp.timestamp())
        labels = content.metadata.labels or {}
        self.fleet: str = labels.get(INSTANCE, "")
        self.component: str = labels.get(COMPONENT, "")
        indices = (labels[key] for key in (COMPLETION_INDEX, POD_INDEX, SERVICE_INDEX) if key in labels)
        self.index = int(next(indices, -1))
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
    def kept_by(self) -> str:
        """The name of a container that the cluster added and that runs on after the process has ended; empty: none.

        Until it ends, the pod has not, and its Job neither completes nor replaces it. A sidecar, which is an init
        container, is ended by the kubelet.
        """
        if self._ended is None or self.content.status.phase != "Running":
            return ""
        others = (each for each in self.content.status.container_statuses or () if each.name != self.component)
        return next((str(each.name) for each in others if each.state.running is not None), "")

    @property
    def has_failed(self) -> bool:
        """Whether its process has ended, and not well."""
        return self.exit_code not in (None, DONE) or self.content.status.phase == "Failed"

    @property
    def is_disrupted(self) -> bool:
        """Whether it was deleted, evicted or preempted, whatever exit code its process has had then."""
        conditions = self.content.status.conditions or ()
        is_target = any(each.type == "DisruptionTarget" and each.status == "True" for each in conditions)
        return is_target or self.content.metadata.deletion_timestamp is not None

    @property
    def has_node(self) -> bool:
        """Whether a node was chosen for it."""
        return bool(self.content.spec.node_name)

    @property
    def claims(self) -> set[str]:
        """The names of the PersistentVolumeClaims that it mounts."""
        sources = (volume.persistent_volume_claim for volume in self.content.spec.volumes or ())
        return {source.claim_name for source in sources if source is not None}

    @property
    def awaits_container(self) -> bool:
        """Whether its container is not there yet, and its own state does not say why."""
        is_pending = self.content.status.phase == "Pending" and self.content.metadata.deletion_timestamp is None
        return is_pending and self._running is None and not self.problem()

    @property
    def awaits_volume(self) -> bool:
        """Whether no node takes it because a claim is not bound; the claim's events say why."""
        return UNBOUND in self.problem()

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

    @property
    def takes_traffic(self) -> bool:
        """Whether Services lead to it: not after its deletion, nor while its node does not answer."""
        conditions = self.content.status.conditions or ()
        is_refused = any(each.type == "Ready" and each.status != "True" for each in conditions)
        return self.content.metadata.deletion_timestamp is None and not is_refused

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
        return self._cause_of(self._ended)

    @property
    def end_before(self) -> tuple[int | None, str]:
        """Exit code of the process before the present one in its container, and why it ended; None: there was none."""
        state = self._status.last_state if self._status is not None else None
        ended = state.terminated if state is not None else None
        return (None, "") if ended is None else (int(ended.exit_code), self._cause_of(ended))

    @property
    def is_between_processes(self) -> bool:
        """Whether its process has ended, and the kubelet waits before it starts the next one."""
        return self._status is not None and self._status.state.waiting is not None and self.end_before[0] is not None

    @property
    def container_restarts(self) -> int:
        """How often the kubelet has started its container again."""
        return int(self._status.restart_count) if self._status is not None else 0

    def _cause_of(self, ended: Any) -> str:
        if ended.reason == OUT_OF_MEMORY:
            return out_of_memory(named(self.content.spec.containers, self.component).resources.limits["memory"])
        return _last_message(ended.message or "") or cause_of_end(int(ended.exit_code))


def pods_of(contents: Iterable[Any]) -> list[Pod]:
    """The pods of runs and services among V1Pods: by fleet, role and index, older ones first."""
    pods = [pod for pod in map(Pod, contents) if pod.component in OF_FLEETS and pod.index >= 0]
    return sorted(pods, key=lambda pod: (pod.fleet, pod.component, pod.index, pod.created, pod.name))


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
