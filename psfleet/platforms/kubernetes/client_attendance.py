"""Renews the annotation that keeps a client's pod running, and deletes the pods that killed commands have left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from psfleet.errors import PsfleetError
from psfleet.manifests.kubernetes.names import CLIENT, RENEWED, STANDING
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.pods import Pod
from psfleet.processes.renewed import RENEW_SECS

logger = logging.getLogger("psfleet.launch")

KEPT = timedelta(hours=1)
"""A pod that has ended was left behind if its last renewal is older than this, which is more than clocks differ."""


def renewal() -> Mapping[str, str]:
    """The annotations of a pod that is renewed now."""
    return {RENEWED: datetime.now(UTC).isoformat(timespec="seconds")}


@contextmanager
def renewed(cluster: Cluster, pod: Pod) -> Iterator[None]:
    """Context manager during which a thread renews a pod; without it, the pod's script ends by itself.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer.
    """
    cluster.annotate_pod(pod.name, pod.uid, renewal())
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(RENEW_SECS):
            try:
                cluster.annotate_pod(pod.name, pod.uid, renewal())
            except PsfleetError as error:
                logger.debug("pod %s is not renewed: %s", pod.name, error)

    threading.Thread(target=renew, name="renewal", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def delete_left(cluster: Cluster, fleet: str) -> None:
    """Deletes the pods of a fleet's clients that have ended, and that no command has deleted since."""
    for pod in map(Pod, cluster.pods(fleet, STANDING)):
        if pod.component == CLIENT and pod.is_over and _last_renewal(pod) < datetime.now(UTC) - KEPT:
            cluster.delete_pod(pod.name, pod.uid)


def _last_renewal(pod: Pod) -> datetime:
    """When a pod was renewed, or else created."""
    text = (pod.content.metadata.annotations or {}).get(RENEWED, "")
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(pod.created, UTC)
