"""Why pods of a fleet are not created or do not start, from the events of its Jobs, pods and volume."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from psfleet.errors import UsageError
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.jobs import failed_indexes, is_suspended, num_indexes, place_of, verdict
from psfleet.platforms.kubernetes.pods import Pod, one_line

logger = logging.getLogger("psfleet.launch")

KEPT_SECS = 2.0
"""How long the answers of the API are kept: a fleet that is followed is looked at every second."""
MOST_OBJECTS = 6
"""Number of Jobs and pods whose events are read at a time: pods of one role wait for the same reason."""
SILENT_SECS = 10.0
"""How long a Job may have no pod, or a claim no volume, before that is a problem, if no event says why."""
STUCK_SECS = 60.0
"""How long after its grace period a pod may be there; clocks may differ."""
NOT_CREATED = "FailedCreate"
PULLING = "Pulling"
WARNING = "Warning"
ERROR_OF_CREATION = "Error creating: "
OWN_NAME = re.compile(r'(pods? "[^"]*-\d+-)[a-z0-9]{5}"')
"""The name of a pod that was refused: the Job controller chooses another one at each try."""


class WaitReasons:
    """Reads the events of those Jobs and pods that wait.

    Without the right to list events, no reasons are known.

    Args of the constructor:
        noun: What makes the pods, if not Jobs do.
        lacks: Whether such an object lacks some of its pods; None: `lacks_pods`.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        noun: str = "Job",
        lacks: Callable[[Any, Sequence[Pod]], bool] | None = None,
    ) -> None:
        self._cluster = cluster
        self._noun, self._lacks = noun, lacks
        self._clock = clock
        self._now = now
        self._may_read = True
        # By uid of a Job or pod: when its reason was read, and the reason.
        self._known: dict[str, tuple[float, str]] = {}
        # By uid of a Job without any pod, or of a volume that is not bound: when that was first seen.
        self._since: dict[str, float] = {}

    def of(self, jobs: Iterable[Any], pods: Sequence[Pod]) -> Mapping[str, str]:
        """The reasons in one line, by the uid of a V1Job that lacks pods or of a pod that waits for its process.

        Raises:
            LostPeerError: The API does not answer.
        """
        reasons: dict[str, str] = {}
        for job in jobs:
            own = [pod for pod in pods if (pod.fleet, pod.component) == place_of(job)]
            if (self._lacks or lacks_pods)(job, own):
                reasons[job.metadata.uid] = self._of_job(job, own)
        for pod in [each for each in pods if each.awaits_container or each.awaits_volume][:MOST_OBJECTS]:
            reasons[pod.uid] = self._kept(pod.uid, lambda pod=pod: self._of_pod(pod))  # type: ignore[misc]
        reasons |= {pod.uid: stuck_problem(pod, self._now()) for pod in pods if pod.uid not in reasons}
        return {uid: reason for uid, reason in reasons.items() if reason}

    def _of_job(self, job: Any, pods: Sequence[Pod]) -> str:
        """Why a Job lacks pods. An event from before its newest pod is out of date."""
        uid = job.metadata.uid
        newest = max([pod.created for pod in pods], default=0.0)
        reason = self._kept(uid, lambda: creation_problem(self._events(uid), newest))
        if reason or pods:
            self._since.pop(uid, None)
            return reason
        return f"{self._noun} {job.metadata.name} has no pod" if self._lasts(uid) else ""

    def _of_pod(self, pod: Pod) -> str:
        reason = start_problem(self._events(pod.uid))
        return reason if reason or pod.has_node else self._of_claims(pod)

    def _of_claims(self, pod: Pod) -> str:
        """Why a volume that a pod mounts is not bound; the scheduler waits for it without an event."""
        names = pod.claims
        for claim in self._cluster.claims(pod.fleet) if names else ():
            if claim.metadata.name in names and claim.status.phase == "Pending":
                reason = start_problem(self._events(claim.metadata.uid))
                if reason or self._lasts(claim.metadata.uid):
                    return f"PersistentVolumeClaim {claim.metadata.name} is not bound" + (reason and f": {reason}")
        return ""

    def _lasts(self, uid: str) -> bool:
        """Whether an object has been without a pod or a volume for so long that this is a problem."""
        return self._clock() - self._since.setdefault(uid, self._clock()) > SILENT_SECS

    def _kept(self, uid: str, read: Callable[[], str]) -> str:
        """A reason, which is read anew after `KEPT_SECS`."""
        at, reason = self._known.get(uid, (-KEPT_SECS, ""))
        if self._clock() - at >= KEPT_SECS:
            reason = read()
            self._known[uid] = self._clock(), reason
        return reason

    def _events(self, uid: str) -> list[Any]:
        if not self._may_read:
            return []
        try:
            return self._cluster.events(uid)
        except UsageError as error:
            logger.debug("%s: why pods do not start is not known", error)
            self._may_read = False
            return []


def lacks_pods(job: Any, pods: Sequence[Pod]) -> bool:
    """Whether a V1Job that is not held back has an index to run, of which no pod runs or has ended well."""
    if is_suspended(job) or verdict(job) is not None:
        return False
    served = {pod.index for pod in pods if not pod.has_failed}
    return bool(set(range(num_indexes(job))) - served - failed_indexes(job))


def creation_problem(events: Sequence[Any], newest_pod: float) -> str:
    """Why the Job controller creates no pod, by the events of a V1Job; empty if its last try succeeded.

    Args:
        newest_pod: When the newest pod of the Job was created, in seconds since 1970; 0: there is none.
    """
    newest = _newest(each for each in events if _time(each) >= newest_pod)
    if newest is None or newest.reason != NOT_CREATED:
        return ""
    text = OWN_NAME.sub(r'\1…"', one_line(newest.message or ""))
    return f"{NOT_CREATED}: {text.removeprefix(ERROR_OF_CREATION)}"


def start_problem(events: Sequence[Any]) -> str:
    """Why the container of a pod is not created, by the events of the pod; empty if they do not say.

    Events about a missing node are left out, since they may be out of date; the pod's condition says that.
    """
    newest = _newest(each for each in events if each.reason != "FailedScheduling")
    if newest is None or (newest.type != WARNING and newest.reason != PULLING):
        return ""
    return f"{newest.reason}: {one_line(newest.message or '')}"


def stuck_problem(pod: Pod, now: float) -> str:
    """Why a deleted pod does not go, which keeps its Job from replacing it; empty if it was not deleted, or just now.

    Args:
        now: In seconds since 1970.
    """
    # The API adds the grace period to the time of the request.
    end = pod.content.metadata.deletion_timestamp
    if end is None or pod.is_over or now - end.timestamp() < STUCK_SECS:
        return ""
    node = pod.content.spec.node_name
    return f"Terminating: node {node} does not end the pod; it is replaced when the node answers, or is deleted"


def _newest(events: Iterable[Any]) -> Any:
    """The newest event, of several of one second a warning; None if there is none."""
    return max(events, key=lambda event: (_time(event), event.type == WARNING), default=None)


def _time(event: Any) -> float:
    """When an event occurred last, in seconds since 1970."""
    series = event.series.last_observed_time if event.series is not None else None
    when = series or event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return float(when.timestamp()) if when is not None else 0.0
