"""Pods of a fleet's volume: reads it, also that of a fleet that is down, through a pod that mounts it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import RESULTS
from psfleet.manifests.kubernetes.pod_settings import apply_placement
from psfleet.manifests.kubernetes.pod_template import reader
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.events import WaitReasons
from psfleet.platforms.kubernetes.exec import execute
from psfleet.platforms.kubernetes.pods import Pod
from psfleet.polling import wait_until

PACK = ("sh", "-c", f"tar -C {container.OUT} --exclude=./lost+found '--exclude=./.*' -cf - . || [ $? -eq 1 ]")
"""Packs the results. GNU tar ends with 1 if a file grew or was deleted meanwhile, as they do while the fleet trains."""


@contextmanager
def packed(cluster: Cluster, reasons: WaitReasons, job: Job) -> Iterator[Iterator[bytes]]:
    """Context manager for the chunks of a tar archive of what is on a fleet's volume.

    Raises:
        DeadlineError: The pod does not start within `deadlines.start_secs`.
        UsageError: The API refuses a request.
        LostPeerError: The API does not answer, or the archive breaks off.
    """
    content = apply_placement(job.kubernetes, reader(job, f"{job.name}-{RESULTS}-{secrets.token_hex(3)}"))
    with helper_pod(cluster, reasons, job, content, "which copies the results") as pod:
        yield execute(cluster, pod, RESULTS, PACK)


@contextmanager
def helper_pod(
    cluster: Cluster, reasons: WaitReasons, job: Job, content: dict[str, Any], purpose: str
) -> Iterator[str]:
    """Context manager for a pod that mounts a fleet's volume; returns its name, and deletes it at the end.

    Args:
        purpose: Completes "pod X, …" in the error if it does not start within `deadlines.start_secs`.
    """
    name = content["metadata"]["name"]
    cluster.create_pod(content)

    def state() -> str:
        found = cluster.pod(name)
        if found is None:
            return "deleted"
        pod = Pod(found)
        return reasons.of([], [pod]).get(pod.uid) or pod.problem() or pod.state()

    try:
        wait_until(state, job.deadlines.start_secs, f"pod {name}, {purpose}", done="running".__eq__, poll_secs=0.5)
        yield name
    finally:
        cluster.delete_pod(name)
