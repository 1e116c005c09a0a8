"""Follows a fleet in Kubernetes to its end: the chief's log, through all its pods, and what keeps pods from running."""

from __future__ import annotations

import threading
import time
from typing import Any

from kubernetes import watch

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.launch.follow import Tail, tell_traceback
from psfleet.launch.kubernetes.api import CLOSE_SECS, Cluster, Mirror
from psfleet.launch.kubernetes.members import Pod, job_of, members, newest, verdict
from psfleet.launch.kubernetes.names import PS, WORKER, member
from psfleet.launch.platform import Listener

LOOK_SECS = 0.5
"""Between two looks where nothing is said to have changed."""
LEAVE_SECS = 20.0
"""How long the workers may take to end once the ps have failed for good, and a log once its pod has ended."""
AWAY_SECS = 120.0
"""How long the API may be away."""


class PodTail(Tail):
    """Reads the log of a pod on a thread of its own.

    Args of the constructor:
        after: Entries up to this time of their own are known.
    """

    def __init__(self, cluster: Cluster, pod: Pod, after: float) -> None:
        self.pod = pod.name
        self._stream = watch.Watch()
        super().__init__(cluster.follow(pod.name, self._stream), after)

    def close(self) -> None:
        """Reads no further."""
        self._stream.stop()
        self.join(CLOSE_SECS)


class Follower:
    """One fleet, from now to its end."""

    def __init__(self, cluster: Cluster, name: str, start_secs: float, listener: Listener) -> None:
        self._cluster = cluster
        self._name = name
        self._start_secs = start_secs
        self._listener = listener
        self._changed = threading.Event()
        self._jobs = Mirror(cluster.batch.list_namespaced_job, cluster, name, self._changed)
        self._pods = Mirror(cluster.core.list_namespaced_pod, cluster, name, self._changed)
        self._tail: PodTail | None = None
        self._told = 0.0
        self._failure: dict[str, Any] = {}
        self._said: set[str] = set()
        self._hopeless_since: float | None = None
        self._ps_failed_since: float | None = None
        self._answered = time.monotonic()

    def run(self) -> None:
        """Hands the chief's log to the listener until the run is over.

        Raises:
            UsageError: The fleet was taken down.
            DeadlineError: A pod waits for too long for what must be mended.
            LostPeerError: The API is away for too long.
        """
        try:
            while not self._look():
                self._changed.wait(LOOK_SECS)
                self._changed.clear()
            self._tell_rest()
        finally:
            for reader in (self._jobs, self._pods, self._tail):
                if reader is not None:
                    reader.close()

    def _look(self) -> bool:
        """One look at all; whether the run is over."""
        jobs, contents = self._jobs.objects(), self._pods.objects()
        self._need_answers()
        if jobs is None or contents is None:
            return False
        found = members(contents)
        workers = job_of(jobs, self._name, WORKER)
        if workers is None:
            raise UsageError(f"fleet {self._name} was taken down")
        self._tell(newest(found, WORKER, 0))
        if verdict(workers) is not None:
            return True
        self._say_problems(jobs, found)
        return self._have_ps_failed(job_of(jobs, self._name, PS))

    def _need_answers(self) -> None:
        error = self._jobs.error or self._pods.error
        now = time.monotonic()
        if not error:
            self._answered = now
        elif now - self._answered > AWAY_SECS:
            raise LostPeerError(f"Kubernetes does not answer: {error}")

    def _tell(self, chief: Pod | None) -> None:
        tail = self._tail
        for entry in tail.entries() if tail is not None else ():
            self._told = entry.get("time", self._told)
            if entry.get("event") == "failed":
                self._failure = entry
            self._listener(entry)
        if chief is None or not chief.has_log:
            return
        # Its log is read again from its beginning.
        is_cut_off = tail is not None and tail.is_over and not chief.is_over
        if tail is None or tail.pod != chief.name or is_cut_off:
            self._tail = PodTail(self._cluster, chief, self._told if is_cut_off else 0.0)

    def _say_problems(self, jobs: list[Any], found: list[Pod]) -> None:
        for job in jobs:
            if job.spec.suspend:
                self._say("suspended", f"Job {job.metadata.name} is suspended: it waits until somebody resumes it")
        hopeless = ""
        for pod in found:
            if pod.is_over and pod.cause():
                self._say("pod_failed", f"pod {pod.name}: {pod.cause()}")
            elif pod.problem() and not pod.is_over:
                self._say("pod_waits", f"pod {pod.name} does not start: {pod.problem()}")
                hopeless = f"pod {pod.name}: {pod.problem()}" if pod.is_hopeless() else hopeless
        now = time.monotonic()
        self._hopeless_since = None if not hopeless else self._hopeless_since or now
        if self._hopeless_since is not None and now - self._hopeless_since > self._start_secs:
            raise DeadlineError("every pod to start", self._start_secs, hopeless)

    def _say(self, event: str, message: str) -> None:
        """Tells something once."""
        if message not in self._said:
            self._said.add(message)
            self._listener({"event": event, "message": message})

    def _have_ps_failed(self, job: Any) -> bool:
        """Whether the ps are gone for good, and the workers have not ended since."""
        ended = verdict(job)
        if ended is None or ended.type != "Failed":
            self._ps_failed_since = None
            return False
        now = time.monotonic()
        self._ps_failed_since = self._ps_failed_since or now
        if now - self._ps_failed_since < LEAVE_SECS:
            return False
        self._say("gone", f"Job {member(self._name, PS)} has failed: {ended.message}")
        return True

    def _tell_rest(self) -> None:
        """What the chief said last, and the training program's own traceback if that is what ended the run."""
        deadline = time.monotonic() + LEAVE_SECS
        while self._tail is not None and not self._tail.is_over and time.monotonic() < deadline:
            self._tell(None)
            self._changed.wait(0.1)
        tell_traceback(self._failure, self._listener)
