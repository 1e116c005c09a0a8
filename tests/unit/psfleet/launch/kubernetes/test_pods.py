"""What the API shows of pods, and what psfleet says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client

from psfleet.launch.kubernetes.jobs import failed_indexes, verdict
from psfleet.launch.kubernetes.pods import Pod, members_of, pods_of
from psfleet.launch.platform import Member

LABELS = {
    "app.kubernetes.io/part-of": "psfleet",
    "app.kubernetes.io/instance": "small",
    "app.kubernetes.io/component": "worker",
    "batch.kubernetes.io/job-completion-index": "1",
}
CREATED = "2026-01-01T00:00:00Z"
LOGGED = '{"time": 1.0, "level": "error", "message": "the run ended: NaN"}'


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

    meta = {"name": "small-worker-1-x", "uid": "u", "creationTimestamp": CREATED, "labels": LABELS}
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


def workers(verdict: str = "", failed: str | None = None, suspend: bool = False) -> Any:
    """The Job of two workers."""
    condition = {"type": verdict, "status": "True", "reason": "MaxFailedIndexesExceeded", "message": "too\nmany"}
    labels = {"app.kubernetes.io/instance": "small", "app.kubernetes.io/component": "worker"}
    content = {
        "metadata": {"name": "small-worker", "creationTimestamp": CREATED, "labels": labels},
        "spec": {"completions": 2, "suspend": suspend, "template": {"spec": {"containers": []}}},
        "status": {"conditions": [condition] if verdict else [], "failedIndexes": failed},
    }
    return read(content, "V1Job")


def worker_1(job: Any, *pods: Pod) -> Member:
    """The second member of the Job, whose pods are those of worker 1."""
    chief, worker = members_of([job], pods)
    assert (chief.role, chief.index, worker.role, worker.index) == ("chief", 0, "worker", 1)
    return worker


def running() -> Pod:
    return pod({"running": {"startedAt": "2026-01-01T00:01:00Z"}})


def test_a_pod_that_runs_is_a_member_with_the_start_of_its_process() -> None:
    found = worker_1(workers(), running())
    assert (found.name, found.state, found.health) == ("small-worker-1-x", "running", "starting")
    assert (found.exit_code, found.is_over) == (None, False)
    assert found.started == found.created + 60


def test_the_newest_pod_of_an_index_is_its_member_and_an_older_one_is_remembered_for_its_memory() -> None:
    found = worker_1(workers(), ended(137, "OOMKilled"), running())
    assert (found.state, found.note) == ("running", "OOMKilled: out of memory, the limit is 2Gi")


def test_a_failed_pod_whose_index_is_restarted_is_not_over() -> None:
    found = worker_1(workers(), ended(75))
    assert (found.exit_code, found.is_over, found.cause) == (75, False, "exit code 75")


@pytest.mark.parametrize(("code", "failed"), [(70, None), (75, "1"), (75, "0-1"), (0, None)])
def test_a_pod_is_over_after_a_permanent_failure_its_last_restart_or_success(code: int, failed: str | None) -> None:
    assert worker_1(workers(failed=failed), ended(code)).is_over


def test_an_index_without_a_pod_waits_until_its_job_ends() -> None:
    assert worker_1(workers()).state == "waiting"
    removed = worker_1(workers("Complete"))
    assert (removed.state, removed.exit_code, removed.is_over) == ("removed", 0, True)


def test_the_verdict_of_a_failed_job_is_the_cause_of_members_that_have_none() -> None:
    found = worker_1(workers("Failed"), ended(143))
    assert found.has_failed
    assert found.cause == "Job failed: MaxFailedIndexesExceeded: too many"
    assert worker_1(workers("Failed"), ended(70)).cause == "exit code 70"


def test_the_chief_is_over_only_with_its_job() -> None:
    chief_pod = ended(0, "Completed")
    chief_pod.index = 0
    assert [members_of([workers(verdict)], [chief_pod])[0].is_over for verdict in ("", "Complete")] == [False, True]


def test_a_chief_whose_restarts_are_used_up_is_over_though_its_job_is_not() -> None:
    assert [members_of([workers(failed=text)], [])[0].is_over for text in (None, "1", "0")] == [False, False, True]


def test_a_suspended_job_is_a_problem_that_needs_no_end() -> None:
    found = worker_1(workers(suspend=True))
    assert (found.state, found.needs_user) == ("suspended", False)
    assert "suspended" in found.problem


def test_a_pod_whose_image_cannot_be_pulled_needs_a_user() -> None:
    assert worker_1(workers(), pod({"waiting": {"reason": "ErrImagePull", "message": "no"}}, "Pending")).needs_user


def test_an_evicted_pod_has_failed() -> None:
    found = worker_1(workers(), pod(phase="Failed", reason="Evicted", message="The node was low on disk"))
    assert (found.has_failed, found.cause) == (True, "The node was low on disk")


@pytest.mark.parametrize(("text", "indexes"), [(None, set()), ("1", {1}), ("1,3-5,7", {1, 3, 4, 5, 7})])
def test_failed_indexes_are_read_as_the_api_writes_them(text: str | None, indexes: set[int]) -> None:
    assert failed_indexes(workers(failed=text)) == indexes


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
