"""Asks the chief of a run, or the front of a service, to end, and waits for its end."""

from __future__ import annotations

import math

from psfleet.job.activity import SERVICE
from psfleet.launch.platform import Member
from psfleet.manifests.kubernetes.names import CHIEF, FRONT, component_name
from psfleet.platforms.kubernetes.api import Cluster, suppress_missing, translate_errors
from psfleet.platforms.kubernetes.exec import execute
from psfleet.platforms.kubernetes.pods import pods_of
from psfleet.polling import wait_until

REMOVAL_SECS = 60.0
"""How long the API may take to remove what was deleted, beyond the pods' own time to end."""
INTERRUPT = ("sh", "-c", "kill -INT 1")
"""Sends SIGINT to a container's first process, which passes it on."""


def stop(cluster: Cluster, chief: Member, timeout_secs: float) -> None:
    """See `Platform.stop`."""
    if chief.activity == SERVICE:
        # The kubelet would start the process again. The members answer meanwhile what the front has asked them.
        name = component_name(chief.fleet, FRONT)
        with translate_errors(f"scale Deployment {name}"), suppress_missing():
            cluster.apps.patch_namespaced_deployment(name, cluster.namespace, {"spec": {"replicas": 0}})
    else:
        # The pod is not deleted: that sends SIGTERM, at which a chief ends without ending the run.
        for _ in execute(cluster, chief.name, CHIEF, INTERRUPT):
            continue

    def is_gone() -> bool:
        return all(pod.name != chief.name or pod.is_over for pod in pods_of(cluster.pods(chief.fleet)))

    wait_until(is_gone, math.ceil(timeout_secs) + REMOVAL_SECS, f"pod {chief.name} to end", poll_secs=0.5)
