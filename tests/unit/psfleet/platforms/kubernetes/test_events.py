"""Why pods are not created or do not start, by the events of their Job, of the pods and of the volume."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes import client

from psfleet.errors import UsageError
from psfleet.platforms.kubernetes.events import KEPT_SECS, SILENT_SECS, STUCK_SECS, WaitReasons
from psfleet.platforms.kubernetes.members import members_of
from psfleet.platforms.kubernetes.pods import Pod

QUOTA = 'Error creating: pods "small-worker-1-abcde" is forbidden: exceeded quota: pods, used: pods=0, limited: pods=0'
NO_SECRET = 'MountVolume.SetUp failed for volume "tls" : secret "small-worker-tls" not found'
Content = dict[str, Any]


def read(content: Content, kind: str) -> Any:
    return client.ApiClient().deserialize(json.dumps(content), kind, "application/json")


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


def event(of: str, second: int, reason: str, message: str = "", kind: str = "Warning") -> tuple[str, Any]:
    """An event of the object with a uid."""
    about = {"involvedObject": {"uid": of}, "metadata": {"name": "e"}}
    return of, read(
        {**about, "type": kind, "reason": reason, "message": message, "lastTimestamp": at(second)}, "CoreV1Event"
    )


def workers(**spec: Any) -> Any:
    """The Job of two workers."""
    labels = {"app.kubernetes.io/instance": "small", "app.kubernetes.io/component": "worker"}
    meta = {"name": "small-worker", "uid": "job", "creationTimestamp": at(0), "labels": labels}
    spec = {"completions": 2, "parallelism": 2, "template": {"spec": {"containers": []}}, **spec}
    return read({"metadata": meta, "spec": spec, "status": {}}, "V1Job")


def pod(index: int, second: int = 1, phase: str = "Pending", state: Content | None = None, node: str = "n") -> Pod:
    """A pod of a worker."""
    labels = {"app.kubernetes.io/instance": "small", "app.kubernetes.io/component": "worker"}
    labels["batch.kubernetes.io/job-completion-index"] = str(index)
    meta = {"name": f"small-worker-{index}-x", "uid": f"pod-{index}", "creationTimestamp": at(second), "labels": labels}
    status: Content = {"phase": phase}
    if state is not None:
        container = {"name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        status["containerStatuses"] = [container]
    return Pod(read({"metadata": meta, "spec": {"containers": [], "nodeName": node}, "status": status}, "V1Pod"))


def unschedulable(index: int, message: str) -> Pod:
    """A pod that the scheduler gave no node."""
    content = pod(index, node="").content
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    content.status.conditions = [read(condition, "V1PodCondition")]
    return Pod(content)


def creating(index: int, second: int = 1) -> Pod:
    return pod(index, second, state={"waiting": {"reason": "ContainerCreating"}})


def running(index: int, second: int = 1) -> Pod:
    return pod(index, second, "Running", {"running": {"startedAt": at(second)}})


def deleted(found: Pod, second: int) -> Pod:
    """A pod whose grace period ends at a second."""
    found.content.metadata.deletion_timestamp = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    return found


def mounting(found: Pod, claim: str) -> Pod:
    """A pod with the volume of a claim."""
    volume = {"name": "results", "persistentVolumeClaim": {"claimName": claim}}
    found.content.spec.volumes = [read(volume, "V1Volume"), read({"name": "tmp", "emptyDir": {}}, "V1Volume")]
    return found


class Eventful:
    """The part of `Cluster` that has events, at a time that tests set."""

    def __init__(self, *happened: tuple[str, Any], claims: list[Any] | None = None) -> None:
        self.happened = list(happened)
        self.num_calls = 0
        self.now = 100.0
        self._claims = claims or []
        self.refuses = False
        self.seconds = 0.0
        start = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        self.reasons = WaitReasons(self, clock=lambda: self.now, now=lambda: start + self.seconds)  # type: ignore[arg-type]

    def events(self, uid: str) -> list[Any]:
        """See `Cluster`."""
        self.num_calls += 1
        if self.refuses:
            raise UsageError("Kubernetes refuses to list events: forbidden")
        return [each for of, each in self.happened if of == uid]

    def claims(self, fleet: str) -> list[Any]:
        """See `Cluster`."""
        return self._claims

    def problems(self, *pods: Pod, job: Any = None) -> list[str]:
        """Of both workers."""
        job = job or workers()
        return [member.problem for member in members_of([job], pods, self.reasons.of([job], pods))]


def test_a_quota_that_lets_no_pod_be_created_is_named_for_each_index() -> None:
    refused = 'FailedCreate: pods "small-worker-1-…" is forbidden: exceeded quota: pods, used: pods=0, limited: pods=0'
    assert Eventful(event("job", 1, "FailedCreate", QUOTA)).problems() == [refused, refused]


def test_only_indexes_without_a_pod_have_the_problem_of_their_job() -> None:
    cluster = Eventful(event("job", 1, "SuccessfulCreate", kind="Normal"), event("job", 1, "FailedCreate", "no"))
    assert cluster.problems(running(0)) == ["", "FailedCreate: no"]


def test_a_failed_pod_that_is_not_replaced_has_the_problem_of_its_job() -> None:
    failed = pod(1, 1, "Failed", {"terminated": {"exitCode": 75}})
    cluster = Eventful(event("job", 5, "FailedCreate", "no"))
    assert cluster.problems(running(0), failed) == ["", "FailedCreate: no"]


@pytest.mark.parametrize(
    "later",
    [event("job", 2, "SuccessfulCreate", kind="Normal"), event("job", 2, "BackoffLimitExceeded")],
    ids=["created", "other"],
)
def test_a_job_whose_later_event_is_another_has_no_problem(later: tuple[str, Any]) -> None:
    assert Eventful(event("job", 1, "FailedCreate", "no"), later).problems() == ["", ""]


def test_an_event_from_before_the_newest_pod_is_out_of_date() -> None:
    assert Eventful(event("job", 1, "FailedCreate", "no")).problems(running(0, 2)) == ["", ""]


def test_a_job_without_pods_and_events_is_a_problem_after_some_seconds() -> None:
    cluster = Eventful()
    assert cluster.problems() == ["", ""]
    cluster.now += SILENT_SECS + 1
    assert cluster.problems() == ["Job small-worker has no pod"] * 2
    assert cluster.problems(running(0)) == ["", ""], "one is on its way"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (event("pod-0", 2, "FailedMount", f"{NO_SECRET}\n"), f"FailedMount: {NO_SECRET}"),
        (event("pod-0", 2, "FailedAttachVolume", "used by n2"), "FailedAttachVolume: used by n2"),
        (event("pod-0", 2, "Pulling", 'Pulling image "big:1"', "Normal"), 'Pulling: Pulling image "big:1"'),
        (event("pod-0", 2, "Pulled", kind="Normal"), ""),
        (event("pod-0", 1, "Scheduled", kind="Normal"), "FailedMount: before"),
        (event("pod-0", 9, "FailedScheduling", "0/3 nodes"), "FailedMount: before"),
    ],
    ids=["secret", "volume", "pull", "pulled", "same second", "scheduling"],
)
def test_a_pod_without_its_container_has_the_problem_of_its_newest_event(found: tuple[str, Any], problem: str) -> None:
    cluster = Eventful(event("pod-0", 1, "FailedMount", "before"), found)
    assert cluster.problems(creating(0), running(1)) == [problem, ""]


def test_a_pod_that_runs_has_no_problem_though_its_events_are_there() -> None:
    cluster = Eventful(event("pod-0", 2, "FailedMount", NO_SECRET))
    assert cluster.problems(running(0), running(1)) == ["", ""]
    assert cluster.num_calls == 0


def test_a_pod_without_a_node_waits_for_the_volume() -> None:
    claim = {"metadata": {"name": "small", "uid": "claim"}, "status": {"phase": "Pending"}}
    claims = [read(claim, "V1PersistentVolumeClaim")]
    cluster, waits = Eventful(claims=claims), mounting(pod(0, node=""), "small")
    assert cluster.problems(waits, running(1)) == ["", ""], "it may be made in a moment"
    cluster.now += SILENT_SECS + 1
    problem = "PersistentVolumeClaim small is not bound"
    assert cluster.problems(waits, pod(1, node="")) == [problem, ""], "the other one does not mount it"
    cluster.now += KEPT_SECS
    cluster.happened.append(event("claim", 1, "ProvisioningFailed", "no space"))
    assert cluster.problems(waits, running(1)) == [f"{problem}: ProvisioningFailed: no space", ""]


def test_a_pod_that_no_node_takes_for_its_volume_has_the_problem_of_that() -> None:
    message = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    claim = {"metadata": {"name": "small", "uid": "claim"}, "status": {"phase": "Pending"}}
    cluster = Eventful(claims=[read(claim, "V1PersistentVolumeClaim")])
    refused = mounting(unschedulable(0, message), "small")
    assert cluster.problems(refused, running(1)) == [f"Unschedulable: {message}", ""]
    cluster.happened.append(event("claim", 1, "ProvisioningFailed", 'storageclass "missing" not found'))
    cluster.now += KEPT_SECS
    problem = 'PersistentVolumeClaim small is not bound: ProvisioningFailed: storageclass "missing" not found'
    assert cluster.problems(refused, running(1)) == [problem, ""]


def test_a_pod_that_its_node_does_not_end_is_a_problem_because_it_is_not_replaced() -> None:
    cluster = Eventful()
    lost = deleted(running(1), 30)
    cluster.seconds = 30 + STUCK_SECS - 1
    assert cluster.problems(running(0), lost) == ["", ""]
    cluster.seconds += 1
    problem = "Terminating: node n does not end the pod; it is replaced when the node answers, or is deleted"
    assert cluster.problems(running(0), lost) == ["", problem]
    ended = deleted(pod(1, 1, "Failed", {"terminated": {"exitCode": 143}}), 30)
    assert cluster.problems(running(0), ended) == ["", ""]


def test_a_job_that_a_queue_holds_back_is_not_asked_for_pods() -> None:
    cluster = Eventful(event("job", 1, "FailedCreate", "no"))
    assert all("suspended" in problem for problem in cluster.problems(job=workers(suspend=True)))
    assert cluster.num_calls == 0


def test_events_are_read_again_after_some_seconds_and_of_some_pods_only() -> None:
    cluster = Eventful()
    job, pods = workers(completions=50), [creating(index) for index in range(50)]
    for _ in range(3):
        cluster.reasons.of([job], pods)
    assert cluster.num_calls == 6
    cluster.now += KEPT_SECS
    cluster.happened.append(event("pod-0", 2, "FailedMount", "no"))
    assert cluster.reasons.of([job], pods) == {"pod-0": "FailedMount: no"}


def test_without_the_right_to_list_events_they_are_asked_for_once() -> None:
    cluster = Eventful()
    cluster.refuses = True
    assert cluster.problems(creating(0), creating(1)) == ["", ""]
    assert cluster.num_calls == 1
