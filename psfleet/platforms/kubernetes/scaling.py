"""Changes the number of indexes of a Job in Kubernetes."""

from __future__ import annotations

from psfleet.platforms.kubernetes.api import Cluster, translate_errors


def scale_job(cluster: Cluster, name: str, number: int) -> None:
    """Sets how many pods a Job runs; those with the highest indexes are removed."""
    # A Job that needs no completion is complete, and would not start anything again.
    spec = {"parallelism": number, **({"completions": number} if number else {})}
    with translate_errors(f"scale Job {name}"):
        cluster.batch.patch_namespaced_job(name, cluster.namespace, {"spec": spec})
