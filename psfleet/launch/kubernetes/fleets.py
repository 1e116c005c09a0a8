"""Runs fleets on Kubernetes through its API: no custom resource, no rights for pods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from psfleet.errors import PERMANENT_CODES, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.launch.kubernetes.api import Cluster, answered
from psfleet.launch.kubernetes.exec import execute
from psfleet.launch.kubernetes.logs import log_lines
from psfleet.launch.kubernetes.members import Pod, job_of, members, newest, verdict
from psfleet.launch.kubernetes.names import JOB_KEY, WORKER, member
from psfleet.launch.kubernetes.render import manifests_text, render
from psfleet.launch.kubernetes.results import collect
from psfleet.launch.kubernetes.status import statuses
from psfleet.launch.kubernetes.tls import secrets
from psfleet.launch.kubernetes.watch import Follower
from psfleet.launch.platform import Listener, Request, TaskStatus, check_rejoin, check_scale
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from psfleet.run_folder import claimed

REMOVAL_SECS = 60.0
"""How long the API may take to remove what was deleted, beyond the pods' own time to end."""
KINDS = (
    ("batch/v1", "Job"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)
"""Of what a fleet is made, but for its volume."""
VOLUME = ("v1", "PersistentVolumeClaim")
INTERRUPT = ("sh", "-c", "kill -INT 1")
"""Sends SIGINT to a container's first process, which passes it on."""


class Kubernetes:
    """A `Platform` in a namespace of a cluster; each fleet is two Jobs and what they stand on."""

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """See `Platform`."""
        return manifests_text(request.job, request.job_file, command)

    def up(self, request: Request) -> None:
        """See `Platform`. A fleet that has ended and was not collected yet is left, too."""
        job = request.job
        objects = render(job, request.job_file) + secrets(job)
        jobs = self._cluster.jobs(job.name)
        if jobs and self._is_there(request, jobs):
            return
        if jobs:
            self._remove(job.name)
        if request.fresh:
            self._remove_volume(job.name)
        jobs = [each for each in objects if each["kind"] == "Job"]
        workers = next(each for each in jobs if each["metadata"]["name"] == member(job.name, WORKER))
        # The workers' Job last: all that its pods need is there.
        others = [each for each in objects if each is not workers]
        self._cluster.apply(others)
        (owner,) = self._cluster.apply([workers])
        self._cluster.apply([_owned(each, owner) for each in others if each["kind"] != VOLUME[1]])

    def follow(self, name: str, listener: Listener) -> None:
        """See `Platform`."""
        job = self._job(name)
        Follower(self._cluster, name, job.deadlines.start_secs, listener).run()

    def collect(self, name: str, folder: Path) -> Report:
        """See `Platform`."""
        job = self._job(name)
        jobs, found = self._cluster.jobs(name), self._members(name)
        with claimed(folder, job, fresh=False) as run_folder:
            return collect(self._cluster, jobs, found, job, run_folder)

    def status(self, name: str | None) -> list[TaskStatus]:
        """See `Platform`."""
        jobs = self._need(name) if name is not None else self._cluster.jobs(None)
        return statuses(self._cluster, jobs, self._members(name))

    def logs(self, name: str, task: str | None, follow: bool) -> Iterator[str]:
        """See `Platform`. With all tasks, each line begins with the task's."""
        self._need(name)
        # The newest pod of each place comes last, and stays.
        tasks = {_task(pod): pod for pod in self._members(name) if pod.has_log}
        wanted = "chief" if task == f"{WORKER}-0" else task
        if wanted is not None and wanted not in tasks:
            raise UsageError(f"fleet {name} has no {task} with a log, expected one of {', '.join(sorted(tasks))}")
        if wanted is not None:
            tasks = {wanted: tasks[wanted]}
        return log_lines(self._cluster, tasks, follow, named=wanted is None)

    def scale(self, name: str, workers: int) -> None:
        """See `Platform`."""
        content = job_of(self._need(name), name, WORKER)
        if content is None or verdict(content) is not None:
            raise UsageError(f"fleet {name} does not run, expected one that trains")
        job = self._job(name)
        check_scale(job, workers)
        patch = {"spec": {"completions": workers, "parallelism": workers}}
        with answered(f"scale Job {content.metadata.name}"):
            self._cluster.batch.patch_namespaced_job(content.metadata.name, self._cluster.namespace, patch)

    def down(self, name: str, results: bool) -> None:
        """See `Platform`. The chief is stopped first, while the others are there: it saves what they have made."""
        if not (results and self._cluster.claims(name)):
            self._need(name)
        chief = newest(self._members(name), WORKER, 0)
        if chief is not None and chief.state() == "running":
            self._stop(chief)
        self._remove(name)
        if results:
            self._remove_volume(name)

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster()

    def _members(self, name: str | None) -> list[Pod]:
        return members(self._cluster.pods(name))

    def _need(self, name: str) -> list[Any]:
        """The Jobs of a fleet.

        Raises:
            UsageError: There are none.
        """
        jobs = self._cluster.jobs(name)
        if not jobs:
            raise UsageError(
                f"no fleet {name} is in namespace {self._cluster.namespace}, expected one that was started"
            )
        return jobs

    def _job(self, name: str) -> Job:
        """What a fleet trains."""
        text = self._cluster.config_map(name).get(JOB_KEY)
        if text is None:
            self._need(name)
            raise UsageError(f"fleet {name} has no ConfigMap {name} with its job, expected one that psfleet rendered")
        return parse_job(json.loads(text))

    def _is_there(self, request: Request, jobs: Sequence[Any]) -> bool:
        """Whether a fleet trains this job, or has ended for good and waits for its results to be fetched.

        Raises:
            UsageError: One trains, but another version of the job; or a fresh one is wanted.
        """
        name = request.job.name
        workers = job_of(jobs, name, WORKER)
        if workers is None:
            return False
        is_same = self._job(name) == request.job
        ended = verdict(workers)
        if ended is not None:
            permanent = any(pod.exit_code in PERMANENT_CODES for pod in self._members(name))
            return is_same and not request.fresh and (ended.type == "Complete" or permanent)
        check_rejoin(request, is_same)
        return True

    def _stop(self, chief: Pod) -> None:
        """Has the chief save and end the run. SIGTERM, which a deleted pod gets, only has it make room for another."""
        execute(self._cluster, chief.name, INTERRUPT)
        limit = (chief.content.spec.termination_grace_period_seconds or 0) + REMOVAL_SECS

        def is_gone() -> bool:
            return all(pod.uid != chief.uid or pod.is_over for pod in self._members(chief.fleet))

        wait_until(is_gone, limit, f"pod {chief.name} to save and end", poll_secs=0.5)

    def _remove(self, name: str) -> None:
        """Removes all but the volume, and waits for it."""
        pods = self._cluster.pods(name)
        self._cluster.remove_all(name, KINDS)
        grace = max([pod.spec.termination_grace_period_seconds or 0 for pod in pods], default=0)

        def left() -> list[str]:
            parts = [*self._cluster.jobs(name), *self._cluster.pods(name)]
            return [part.metadata.name for part in parts]

        wait_until(left, grace + REMOVAL_SECS, f"the pods of fleet {name} to end", done=_is_empty, poll_secs=0.5)

    def _remove_volume(self, name: str) -> None:
        self._cluster.remove_all(name, [VOLUME])

        def left() -> list[str]:
            return [claim.metadata.name for claim in self._cluster.claims(name)]

        wait_until(left, REMOVAL_SECS, f"the volume of fleet {name} to be removed", done=_is_empty, poll_secs=0.5)


def _owned(content: dict[str, Any], owner: Any) -> dict[str, Any]:
    """An object that goes when its owner does."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.metadata.name, "uid": owner.metadata.uid}
    return {**content, "metadata": {**content["metadata"], "ownerReferences": [reference]}}


def _task(pod: Pod) -> str:
    """The name of a pod's task: ps-0, chief, worker-1."""
    return "chief" if (pod.component, pod.index) == (WORKER, 0) else f"{pod.component}-{pod.index}"


def _is_empty(found: Sequence[object]) -> bool:
    return not found
