"""What the API shows of pods, and what psfleet says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client

from psfleet.launch.kubernetes.members import Pod, members, newest, verdict

LABELS = {
    "app.kubernetes.io/part-of": "psfleet",
    "app.kubernetes.io/instance": "small",
    "app.kubernetes.io/component": "worker",
    "batch.kubernetes.io/job-completion-index": "1",
}
CREATED = "2026-01-01T00:00:00Z"


def read(content: dict[str, Any], kind: str) -> Any:
    return client.ApiClient().deserialize(json.dumps(content), kind, "application/json")


def pod(
    state: dict[str, Any] | None = None,
    phase: str = "Running",
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    **status: Any,
) -> Pod:
    """A pod of worker 1 whose process is in a state."""
    name = {"name": "small-worker-1-x", "uid": "u", "creationTimestamp": CREATED}
    container = {"name": "worker", "image": "psfleet-worker:1", "imageID": "", "ready": False, "restartCount": 0}
    if state is not None:
        status["containerStatuses"] = [{**container, "started": False, "state": state}]
    spec = {"containers": [{"name": "worker", "resources": {"limits": {"memory": "2Gi"}}}]}
    meta = {**name, "labels": {**LABELS, **(labels or {})}, "annotations": notes or {}}
    return Pod(read({"metadata": meta, "spec": spec, "status": {"phase": phase, **status}}, "V1Pod"))


def ended(code: int, reason: str = "Error", message: str | None = None) -> Pod:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return pod(state, "Succeeded" if code == 0 else "Failed")


@pytest.mark.parametrize(
    ("found", "state", "cause"),
    [
        (ended(0, "Completed"), "exited (0)", ""),
        (ended(70, message="the loss is NaN\n"), "exited (70)", "the loss is NaN"),
        (ended(70, message='{"message": "the run ended: NaN"}\n'), "exited (70)", "the run ended: NaN"),
        (ended(137, "OOMKilled"), "OOMKilled", "OOMKilled: out of memory, the limit is 2Gi"),
        (ended(137), "exited (137)", "ended by signal 9"),
        (ended(75), "exited (75)", "ended with exit code 75"),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on disk"),
            "evicted",
            "The node was low on disk",
        ),
    ],
    ids=["done", "told", "logged", "memory", "killed", "silent", "evicted"],
)
def test_the_end_of_a_process_is_told_with_its_cause(found: Pod, state: str, cause: str) -> None:
    assert (found.state(), found.cause()) == (state, cause)


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"]
)
def test_what_does_not_come_by_itself_is_told_apart(reason: str) -> None:
    found = pod({"waiting": {"reason": reason, "message": "no such\nthing"}}, "Pending")
    assert found.state() == reason
    assert found.problem() == f"{reason}: no such thing"
    assert found.is_hopeless()


def test_a_pod_without_a_node_says_why_and_there_is_hope() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    found = pod(phase="Pending", conditions=[condition])
    assert found.problem() == "Unschedulable: 0/3 nodes"
    assert not found.is_hopeless()


def test_failures_of_an_index_are_counted_those_from_outside_too() -> None:
    notes = {
        "batch.kubernetes.io/job-index-failure-count": "2",
        "batch.kubernetes.io/job-index-ignored-failure-count": "1",
    }
    assert pod(notes=notes).failures_before == 3


def test_only_ps_and_workers_are_members_and_the_newest_counts() -> None:
    def content(name: str, created: str, component: str) -> Any:
        labels = {**LABELS, "app.kubernetes.io/component": component}
        meta = {"name": name, "uid": name, "creationTimestamp": created, "labels": labels}
        return read({"metadata": meta, "spec": {"containers": []}, "status": {"phase": "Running"}}, "V1Pod")

    late, early, other = (
        content("b", "2026-01-01T00:00:09Z", "worker"),
        content("c", CREATED, "worker"),
        content("a", CREATED, "results"),
    )
    found = members([late, early, other])
    assert [each.name for each in found] == ["c", "b"]
    last = newest(found, "worker", 1)
    assert last is not None
    assert last.name == "b"
    assert newest(found, "ps", 1) is None


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], None),
        ([("FailureTarget", "True")], None),
        ([("Failed", "False")], None),
        ([("SuccessCriteriaMet", "True"), ("Complete", "True")], "Complete"),
        ([("FailureTarget", "True"), ("Failed", "True")], "Failed"),
    ],
)
def test_a_job_is_over_when_all_its_pods_are(conditions: list[tuple[str, str]], expected: str | None) -> None:
    content = {"status": {"conditions": [{"type": name, "status": status} for name, status in conditions]}}
    found = verdict(read(content, "V1Job"))
    assert (found.type if found is not None else None) == expected
