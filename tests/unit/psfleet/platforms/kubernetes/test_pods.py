"""What the API shows of pods, and what psfleet says of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.pod_samples import CREATED, LABELS, ended, pod, read

from psfleet.platforms.kubernetes.pods import Pod, pods_of

LOGGED = '{"time": 1.0, "level": "error", "message": "the run ended: NaN"}'


@pytest.mark.parametrize(
    ("found", "state", "cause"),
    [
        (ended(0, "Completed"), "exited (0)", ""),
        (ended(70, message="the loss is NaN\n"), "exited (70)", "the loss is NaN"),
        (ended(70, message=f"{LOGGED}\n"), "exited (70)", "the run ended: NaN"),
        (ended(137, "OOMKilled"), "OOMKilled", "OOMKilled: out of memory, the limit is 2Gi"),
        (ended(137), "exited (137)", "killed by SIGKILL"),
        (ended(75), "exited (75)", "exit code 75"),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on disk"),
            "evicted",
            "The node was low on disk",
        ),
    ],
    ids=["done", "message", "logged", "memory", "killed", "silent", "evicted"],
)
def test_the_end_of_a_process_has_its_cause(found: Pod, state: str, cause: str) -> None:
    assert (found.state(), found.cause()) == (state, cause)


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"]
)
def test_what_does_not_come_by_itself_is_told_apart(reason: str) -> None:
    found = pod({"waiting": {"reason": reason, "message": "no such\nthing"}}, "Pending")
    assert found.state() == reason
    assert found.problem() == f"{reason}: no such thing"


def test_a_container_that_the_cluster_added_is_not_taken_for_the_process() -> None:
    """A service mesh lists its own container first, and that may run on or end in another way."""

    def status(name: str, state: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "image": "i", "imageID": "", "ready": True, "restartCount": 0, "state": state}

    def container(name: str, memory: str) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {"memory": memory}}}

    meta = {"name": "small-worker-0-x", "uid": "u", "creationTimestamp": CREATED, "labels": LABELS}
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    statuses = [status("istio-proxy", {"running": {"startedAt": CREATED}}), status("worker", killed)]
    spec = {"containers": [container("istio-proxy", "1Gi"), container("worker", "2Gi")]}
    content = {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": statuses}}
    found = Pod(read(content, "V1Pod"))
    assert (found.state(), found.exit_code, found.is_over, found.has_failed) == ("OOMKilled", 137, True, True)
    assert found.cause() == "OOMKilled: out of memory, the limit is 2Gi"


def test_a_pod_without_a_node_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    found = pod(phase="Pending", conditions=[condition])
    assert found.problem() == "Unschedulable: 0/3 nodes"


def test_failures_of_an_index_are_counted_those_from_outside_too() -> None:
    notes = {
        "batch.kubernetes.io/job-index-failure-count": "2",
        "batch.kubernetes.io/job-index-ignored-failure-count": "1",
    }
    assert pod(notes=notes).failures_before == 3


def test_only_pods_of_ps_and_workers_count_older_ones_first() -> None:
    def content(name: str, created: str, component: str) -> Any:
        labels = {**LABELS, "app.kubernetes.io/component": component}
        meta = {"name": name, "uid": name, "creationTimestamp": created, "labels": labels}
        return read({"metadata": meta, "spec": {"containers": []}, "status": {"phase": "Running"}}, "V1Pod")

    late, early, other = (
        content("b", "2026-01-01T00:00:09Z", "worker"),
        content("c", CREATED, "worker"),
        content("a", CREATED, "results"),
    )
    assert [each.name for each in pods_of([late, early, other])] == ["c", "b"]
