"""The pods and Jobs of fleets as the API shows them: who they are, how they are, why they do not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psfleet.errors import SIGNAL_BASE
from psfleet.launch.kubernetes.names import COMPLETION_INDEX, COMPONENT, INSTANCE, PS, WORKER, member
from psfleet.launch.local.child import parse_line

FAILURE_COUNTS = ("batch.kubernetes.io/job-index-failure-count", "batch.kubernetes.io/job-index-ignored-failure-count")
"""Annotations of a pod: how many pods of its index failed before it."""
HOPELESS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
"""Reasons of a container that waits for what will not come by itself."""
OUT_OF_MEMORY = "OOMKilled"


class Pod:
    """A pod of a ps or a worker, as it was when it was looked at."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.name: str = content.metadata.name
        self.uid: str = content.metadata.uid
        labels = content.metadata.labels or {}
        self.fleet: str = labels.get(INSTANCE, "")
        self.component: str = labels.get(COMPONENT, "")
        self.index = int(labels.get(COMPLETION_INDEX, -1))

    @property
    def created(self) -> float:
        """In seconds since 1970."""
        return float(self.content.metadata.creation_timestamp.timestamp())

    @property
    def is_leaving(self) -> bool:
        """Whether it was deleted and has not ended yet."""
        return self.content.metadata.deletion_timestamp is not None

    @property
    def is_over(self) -> bool:
        """Whether its process has ended."""
        return self.content.status.phase in ("Succeeded", "Failed")

    @property
    def has_log(self) -> bool:
        """Whether its process was started."""
        status = self._status()
        return status is not None and (status.state.running is not None or status.state.terminated is not None)

    @property
    def exit_code(self) -> int | None:
        """Of its process; None while there is none."""
        ended = self._ended()
        return None if ended is None else int(ended.exit_code)

    @property
    def reason(self) -> str:
        """Why its process ended, in the API's word: Completed, Error, OOMKilled, …; of an evicted pod, Evicted."""
        ended = self._ended()
        return str((ended.reason if ended is not None else None) or self.content.status.reason or "")

    @property
    def failures_before(self) -> int:
        """How many pods of its index failed before it."""
        notes = self.content.metadata.annotations or {}
        return sum(int(notes.get(key, 0)) for key in FAILURE_COUNTS)

    def state(self) -> str:
        """Of the process, or what it waits for."""
        ended, status = self._ended(), self._status()
        if ended is not None:
            return OUT_OF_MEMORY if self.reason == OUT_OF_MEMORY else f"exited ({ended.exit_code})"
        if self.is_leaving:
            return "terminating"
        if status is not None and status.state.waiting is not None:
            return str(status.state.waiting.reason)
        if status is not None and status.state.running is not None:
            return "running"
        return str(self.content.status.reason or self.content.status.phase).lower()

    def health(self) -> str:
        """As `TaskStatus` has it."""
        status = self._status()
        if status is None or status.state.running is None:
            return ""
        return "healthy" if status.ready else "unhealthy" if status.started else "starting"

    def problem(self) -> str:
        """Why its process does not start, in a line; empty while there is nothing to say."""
        status = self._status()
        waiting = status.state.waiting if status is not None else None
        if waiting is not None and waiting.reason in HOPELESS:
            return f"{waiting.reason}: {_one_line(waiting.message or status.image)}"
        for condition in self.content.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"{condition.reason}: {_one_line(condition.message or '')}"
        return ""

    def is_hopeless(self) -> bool:
        """Whether it waits for what somebody must mend."""
        return self.problem().partition(":")[0] in HOPELESS

    def cause(self) -> str:
        """Why it failed, in a line; empty if it did not."""
        ended = self._ended()
        if ended is None or ended.exit_code == 0:
            return _one_line(self.content.status.message or "") if self.content.status.phase == "Failed" else ""
        if self.reason == OUT_OF_MEMORY:
            limit = self.content.spec.containers[0].resources.limits["memory"]
            return f"{OUT_OF_MEMORY}: out of memory, the limit is {limit}"
        told = _told(ended.message or "")
        if told:
            return told
        code = int(ended.exit_code)
        return f"ended by signal {code - SIGNAL_BASE}" if code > SIGNAL_BASE else f"ended with exit code {code}"

    def _status(self) -> Any:
        found = self.content.status.container_statuses
        return found[0] if found else None

    def _ended(self) -> Any:
        status = self._status()
        return None if status is None else status.state.terminated


def members(pods: Iterable[Any]) -> list[Pod]:
    """The pods of ps and workers among V1Pods: by fleet, role and index, older ones first."""
    found = [pod for pod in map(Pod, pods) if pod.component in (PS, WORKER) and pod.index >= 0]
    return sorted(found, key=lambda pod: (pod.fleet, pod.component, pod.index, pod.created, pod.name))


def newest(found: Sequence[Pod], component: str, index: int) -> Pod | None:
    """The last pod of a place in a fleet: there is never a second one that runs."""
    return next((pod for pod in reversed(found) if (pod.component, pod.index) == (component, index)), None)


def job_of(jobs: Iterable[Any], name: str, component: str) -> Any:
    """The V1Job of a component of a fleet; None if there is none."""
    return next((job for job in jobs if job.metadata.name == member(name, component)), None)


def verdict(job: Any) -> Any:
    """The condition that ended a V1Job: Complete or Failed; None while it goes on."""
    conditions = (job.status.conditions or ()) if job is not None else ()
    return next((each for each in conditions if each.type in ("Complete", "Failed") and each.status == "True"), None)


def _told(message: str) -> str:
    """A termination message in one line: what the service wrote there, or the last thing that it logged."""
    entries = [entry for entry in map(parse_line, message.splitlines()) if entry is not None and "message" in entry]
    return _one_line(str(entries[-1]["message"]) if entries else message)


def _one_line(text: str) -> str:
    return " ".join(text.split())
