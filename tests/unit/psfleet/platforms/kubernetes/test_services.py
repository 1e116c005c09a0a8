"""Services in a namespace: their members by Deployments and pods, and how they are found, refused, ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import kubernetes_api
from support.activity_samples import ACTIVITY, driven_job
from support.exported_run import trained
from support.kubernetes_api import CREATED, Api, Object
from support.pod_samples import read
from support.service_samples import briefly, of_cluster, plan_of, with_plan

from psfleet.errors import DeadlineError, UsageError
from psfleet.job.activity import SERVICE
from psfleet.launch.logs import task_name
from psfleet.launch.platform import Member, Request, chief_of
from psfleet.launch.up import down, start
from psfleet.platforms.kubernetes.api import ForbiddenError
from psfleet.platforms.kubernetes.platform import Kubernetes
from psfleet.platforms.kubernetes.pods import Pod
from psfleet.platforms.kubernetes.service_members import service_members
from psfleet.serving.on_platform import serve_on

NAME = "digits-serve"
RUNNING = {"running": {"startedAt": CREATED}}
WAITS = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
FAILED = {"terminated": {"exitCode": 70, "reason": "Error", "message": "the program raised"}}


def labels(component: str, index: int, name: str = NAME) -> dict[str, str]:
    of_fleet = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": component}
    of_psfleet = {"app.kubernetes.io/part-of": "psfleet", "app.kubernetes.io/managed-by": "psfleet"}
    return {**of_fleet, **of_psfleet, "psfleet.index": str(index)}


def deployment(component: str = "member", index: int = 1, **status: Any) -> Any:
    meta = {"name": f"{NAME}-{component}", "creationTimestamp": CREATED}
    labelled = {**labels(component, index), "psfleet.activity": "service"}
    spec = {"selector": {}, "template": {}}
    return read({"metadata": {**meta, "labels": labelled}, "spec": spec, "status": status}, "V1Deployment")


def pod(
    state: Object, second: int = 0, ready: bool = False, last: Object | None = None, deleted: str = "", **status: Any
) -> Pod:
    """Of member 1; `deleted`: when it is to have ended."""
    meta = {"name": f"pod-{second}", "uid": f"u{second}", "labels": labels("member", 1)}
    own = {"name": "member", "image": "i", "imageID": "", "ready": ready, "started": ready, "restartCount": 3}
    statuses = [{**own, "state": state, "lastState": last or {}}]
    content = {
        "metadata": {
            **meta,
            "creationTimestamp": f"2026-01-01T00:00:0{second}Z",
            **({"deletionTimestamp": deleted} if deleted else {}),
        },
        "spec": {"containers": []},
        "status": {"phase": "Running", "containerStatuses": statuses, **status},
    }
    return Pod(read(content, "V1Pod"))


def member(*pods: Pod, **status: Any) -> Member:
    (found,) = service_members([deployment(**status)], pods, {"u0": "FailedMount: no such Secret"})
    return found


def test_a_deployment_is_a_member_with_its_newest_pod() -> None:
    found = member(pod(FAILED, 0), pod(RUNNING, 1, ready=True))
    assert (task_name(found), found.name, found.state, found.health) == ("member-1", "pod-1", "running", "healthy")
    assert (found.activity, found.restarts, found.exit_code, found.problem) == (SERVICE, 3, None, "")


def test_the_front_is_what_platforms_know_as_the_chief() -> None:
    front, first, second = service_members([deployment(), deployment("front", 0), deployment(index=0)], [])
    assert chief_of([first, second, front]) is front
    assert [task_name(each) for each in (front, first, second)] == ["front", "member-0", "member-1"]


def test_a_process_that_waits_for_its_restart_has_ended_as_the_one_before() -> None:
    found = member(pod(WAITS, last=FAILED))
    assert (found.state, found.exit_code, found.cause) == ("CrashLoopBackOff", 70, "the program raised")
    again = member(pod(RUNNING, last=FAILED))
    assert (again.exit_code, again.cause, again.note) == (None, "", "the program raised")


def test_why_a_pod_waits_is_said() -> None:
    pulling = member(pod({"waiting": {"reason": "ErrImagePull", "message": "not found"}}))
    assert (pulling.problem, pulling.needs_user) == ("ErrImagePull: not found", True)
    creating = member(pod({"waiting": {"reason": "ContainerCreating"}}))
    assert (creating.problem, creating.needs_user) == ("FailedMount: no such Secret", False)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    assert member(pod({}, conditions=[condition])).problem == "Unschedulable: no node"


def test_a_pod_that_is_refused_says_why_by_its_deployment() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded\nquota"}
    assert member(conditions=[refused]).problem == "FailedCreate: exceeded quota"
    assert member(conditions=[{**refused, "status": "False"}]).problem == ""


def test_a_pod_that_ends_or_whose_node_is_lost_is_not_healthy_although_its_probe_was() -> None:
    ending = member(pod(RUNNING, ready=True, deleted=CREATED))
    assert (ending.state, ending.health) == ("terminating", "unhealthy")
    conditions = [{"type": "Ready", "status": "True"}]
    assert member(pod(RUNNING, ready=True, conditions=conditions)).health == "healthy"
    conditions = [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]
    assert member(pod(RUNNING, ready=True, conditions=conditions)).health == "unhealthy"
    assert member(pod(RUNNING, conditions=conditions)).health == "starting"


def front_of(api: Api) -> Object:
    return api.objects["deployments", f"{NAME}-front"]


def test_a_service_is_found_and_another_one_of_its_name_is_refused(api: Api, tmp_path: Path) -> None:
    platform, made = Kubernetes(), of_cluster(tmp_path)
    start(platform, made)
    before = dict(api.objects)
    start(platform, made)
    assert api.objects == before
    assert platform.job(NAME) == made.job
    assert platform.activity(NAME) == made.activity
    with pytest.raises(UsageError, match=f"fleet {NAME} runs another version of the service: `psfleet down {NAME}`"):
        start(platform, with_plan(made, rest_port=9999))
    with pytest.raises(UsageError, match=f"fleet {NAME} is in namespace here as a service, expected another name"):
        start(platform, replace(made, activity=ACTIVITY))
    assert api.objects == before


def test_a_run_does_not_take_the_place_of_a_service(api: Api, tmp_path: Path) -> None:
    platform, made = Kubernetes(), of_cluster(tmp_path)
    start(platform, made)
    job = driven_job().model_copy(update={"name": NAME})
    (tmp_path / "program.py").touch()
    with pytest.raises(UsageError, match="as a service, expected another name for a training run"):
        platform.check(Request(job, tmp_path / "job.yaml"))


def test_the_front_owns_the_other_objects(api: Api, tmp_path: Path) -> None:
    platform = Kubernetes()
    start(platform, of_cluster(tmp_path))
    owned = {key for key, each in api.objects.items() if each["metadata"].get("ownerReferences")}
    assert set(api.objects) - owned == {("deployments", f"{NAME}-front")}
    (owner,) = api.objects["deployments", f"{NAME}-member-0"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Deployment", f"{NAME}-front")


def test_the_front_ends_before_its_members(api: Api, tmp_path: Path) -> None:
    platform = Kubernetes()
    start(platform, of_cluster(tmp_path))
    front = chief_of(platform.members(NAME))
    assert front is not None
    platform.stop(front, 0.1)
    assert front_of(api)["spec"]["replicas"] == 0
    assert api.objects["deployments", f"{NAME}-member-0"]["spec"]["replicas"] == 1
    down(platform, NAME, results=False)
    assert api.objects == {}


def test_a_service_whose_end_was_interrupted_is_started_again(api: Api, tmp_path: Path) -> None:
    platform, made = Kubernetes(), of_cluster(tmp_path)
    start(platform, made)
    front = chief_of(platform.members(NAME))
    assert front is not None
    platform.stop(front, 0.1)
    stopped = chief_of(platform.members(NAME))
    assert stopped is not None
    assert (stopped.state, stopped.problem) == ("stopped", "its Deployment is scaled to 0")
    assert start(platform, made), "it is no service that was found"
    assert front_of(api)["spec"]["replicas"] == 1


def without_right(api: Api, monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    """The platform of a user who has no right to Deployments, as of older Roles."""
    answer = api.answer
    refusal = {"kind": "Status", "code": 403, "message": "deployments.apps is forbidden"}

    def refusing(method: str, url: str, body: Any) -> tuple[int, Any]:
        return (403, refusal) if "/deployments" in url else answer(method, url, body)

    monkeypatch.setattr(api, "answer", refusing)
    return Kubernetes()


def test_a_user_without_the_right_to_deployments_sees_runs(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").touch()
    start(Kubernetes(), Request(driven_job(), tmp_path / "job.yaml", activity=ACTIVITY))
    platform = without_right(api, monkeypatch)
    assert {each.fleet for each in platform.members(None)} == {"small"}
    with pytest.raises(ForbiddenError, match=r"deployments\.apps is forbidden"):
        start(platform, of_cluster(tmp_path))
    down(platform, "small", results=True)
    assert not [key for key in api.objects if key[0] == "jobs"]


def test_such_a_user_cannot_remove_what_a_service_needs(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its NetworkPolicies, TensorFlow's ports of the service would be open."""
    start(Kubernetes(), of_cluster(tmp_path))
    before = dict(api.objects)
    platform = without_right(api, monkeypatch)
    with pytest.raises(ForbiddenError, match=r"deployments\.apps is forbidden"):
        down(platform, NAME, results=True)
    with pytest.raises(ForbiddenError, match=r"deployments\.apps is forbidden"):
        platform.remove(NAME, results=True)
    assert api.objects == before


def test_a_service_that_is_not_ready_in_time_is_removed_with_why_its_pods_wait(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    monkeypatch.setitem(kubernetes_api.STATUS, "deployments", {"conditions": [refused]})
    said: list[str] = []
    with pytest.raises(DeadlineError, match=r"service digits-serve to be ready; .*front waiting \(FailedCreate: exc"):
        serve_on(Kubernetes(), briefly(of_cluster(tmp_path)), said.append, "psfleet down")
    assert said[1:] == ["front waits: FailedCreate: exceeded quota"], "members wait for the same reason"
    assert api.objects == {}


def test_models_that_cannot_be_copied_leave_nothing(api: Api, tmp_path: Path) -> None:
    """The pod that takes them has no kubelet."""
    (tmp_path / "run").mkdir()
    trained(tmp_path / "run")
    made = briefly(of_cluster(tmp_path))
    models = (plan_of(made).models[0].model_copy(update={"fleet": "", "folder": str(tmp_path / "run")}),)
    with pytest.raises(DeadlineError, match=r"pod digits-serve-models-\w+, which takes the models"):
        start(Kubernetes(), with_plan(made, models=models))
    assert api.objects == {}


def test_a_request_that_is_refused_between_others_leaves_nothing(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a quota of Deployments; a refusal to delete is said."""
    answer, refused = api.answer, {"kind": "Status", "code": 403, "message": "exceeded quota"}

    def refusing(method: str, url: str, body: Any) -> tuple[int, Any]:
        is_front = method == "PATCH" and f"/deployments/{NAME}-front" in url
        is_kept = keeps and method == "DELETE"
        return (403, refused) if is_front or is_kept else answer(method, url, body)

    monkeypatch.setattr(api, "answer", refusing)
    keeps = True
    ends = rf"`psfleet down {NAME} --on kubernetes --namespace other` ends it"
    stays = rf"front: exceeded quota; what was started stays, {ends}: Kubernetes refuses to del"
    with pytest.raises(UsageError, match=stays):
        start(Kubernetes(namespace="other"), of_cluster(tmp_path))
    assert ("configmaps", NAME) in api.objects
    keeps = False
    with pytest.raises(UsageError, match=rf"apply Deployment {NAME}-front: exceeded quota$"):
        start(Kubernetes(), of_cluster(tmp_path))
    assert api.objects == {}


def put(api: Api, kind: str, name: str, labelled: Object, spec: Object | None = None) -> None:
    """Stores an object."""
    meta = {"name": name, "uid": name, "creationTimestamp": CREATED, "labels": labelled}
    api.objects[f"{kind.lower()}s", name] = {
        "apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec or {}, "status": {}
    }  # fmt: skip


def test_the_claim_of_a_service_goes_with_it_and_those_of_runs_stay(api: Api, tmp_path: Path) -> None:
    platform, made = Kubernetes(), of_cluster(tmp_path)
    start(platform, made)
    for name, kind in ((NAME, {"psfleet.activity": "service"}), ("one", {})):
        put(api, "PersistentVolumeClaim", name, {**labels("results", 0, name), **kind})
    down(platform, NAME, results=False)
    assert set(api.objects) == {("persistentvolumeclaims", "one")}


def test_results_that_a_service_mounts_are_not_deleted(api: Api) -> None:
    put(api, "PersistentVolumeClaim", "one", labels("results", 0, "one"))
    mounted = [{"name": "model", "persistentVolumeClaim": {"claimName": "one"}}]
    put(api, "Pod", "a-member", labels("member", 0), {"containers": [], "volumes": mounted})
    refused = f"the volume of fleet one is mounted by {NAME}, expected by no other fleet: `psfleet down {NAME}` first"
    with pytest.raises(UsageError, match=refused):
        down(Kubernetes(), "one", results=True)
    assert len(api.objects) == 2
    down(Kubernetes(), NAME, results=False)
    down(Kubernetes(), "one", results=True)
    assert api.objects == {}
