"""`k8s/rbac.yaml` has the rights that psfleet needs, and no others: a fleet is started and ended on a fake API."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.activity_samples import ACTIVITY, driven_job
from support.kubernetes_api import Api, Asked
from support.service_samples import of_cluster

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import load_job
from psfleet.launch.platform import Request
from psfleet.launch.up import down, start
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.platforms.kubernetes.exec import execute
from psfleet.platforms.kubernetes.fleet_start import FleetStart
from psfleet.platforms.kubernetes.platform import Kubernetes
from psfleet.platforms.kubernetes.standing import KubernetesFleets
from psfleet.tls import certificates

ROOT = Path(__file__).parents[5]
JOB = ROOT / "examples" / "linear" / "job.yaml"


def granted() -> set[Asked]:
    """Group, resource and verb of each right of the Role."""
    role = yaml.safe_load((ROOT / "k8s" / "rbac.yaml").read_text())
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_fleets_need_the_rights_of_the_role_and_no_others(api: Api, tmp_path: Path) -> None:
    job = load_job(JOB, ["tls=true", "deadlines.start_secs=0.1", "fleet.ps=1"])
    platform = Kubernetes()
    platform.apply(Request(job, JOB))
    assert ("secrets", "linear-ps-tls") in api.objects
    assert platform.job("linear") == job
    before = api.objects["secrets", "linear-ps-tls"]["data"]
    certificates.renew(certificates_folder("linear"))
    members = platform.members("linear")
    assert {member.role for member in members} >= {"ps", "chief"}
    assert api.objects["secrets", "linear-ps-tls"]["data"]["tls.crt"] != before["tls.crt"], (
        "a renewal reaches the fleet"
    )
    platform.scale(job, 2)
    # The pod has no kubelet.
    with pytest.raises(DeadlineError), platform.tar(job, []):
        pass
    list(platform.log(members[0], tail=1))
    with pytest.raises((LostPeerError, UsageError)):
        list(execute(platform._cluster, "linear-chief-0-x", "chief", ["true"]))
    assert platform.remove("linear", results=True)
    assert api.objects == {}, "all that it made is gone"
    stand_a_fleet_with_a_client()
    assert api.objects == {}, "all that it made is gone"
    serve(tmp_path)
    assert api.objects == {}, "all that it made is gone"
    # From Kubernetes 1.35 on, and asked of the API server itself.
    asked = api.asked | {("", "pods/exec", "create")}
    assert asked - granted() == set(), "rights that psfleet needs and the Role lacks"
    assert granted() - asked == set(), "rights that the Role has and psfleet does not need"


def serve(folder: Path) -> None:
    """Its pods have no kubelet, so that the front is not ready."""
    platform, made = Kubernetes(), of_cluster(folder)
    start(platform, made)
    front, *members = platform.members("digits-serve")
    assert [(front.role, front.index), *((each.role, each.index) for each in members)] == [
        ("chief", 0), ("worker", 0), ("worker", 1)
    ]  # fmt: skip
    platform.stop(front, 0.1)
    down(platform, "digits-serve", results=False)


def stand_a_fleet_with_a_client() -> None:
    """Its pods have no kubelet, so neither serves."""
    fleets, content = KubernetesFleets(), {"name": "lab", "deadlines": {"start_secs": 0.1}}
    file = FleetFile.model_validate({**content, "fleet": {"ps": 1, "workers": 1}})
    with pytest.raises(DeadlineError):
        fleets.up(file)
    start = FleetStart(fleets._cluster, fleets._objects, fleets._reasons, file)
    start.record()
    start.apply()
    assert [member.role for member in fleets.members("lab")] == ["ps", "worker"]
    with pytest.raises(DeadlineError):
        fleets.run("lab", ROOT / "examples/client/shared_variable.py", [])
    fleets.down("lab")


def test_an_object_of_another_owner_stays_as_it_is(api: Api) -> None:
    job = load_job(JOB)
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "linear"}, "data": {"a": "b"}}
    api.objects["configmaps", "linear"] = theirs
    with pytest.raises(UsageError, match="ConfigMap linear in namespace here is not of fleet linear"):
        Kubernetes().apply(Request(job, JOB))
    assert api.objects == {("configmaps", "linear"): theirs}


def test_a_pod_of_another_owner_with_the_labels_of_a_fleet_stays_when_the_fleet_ends(api: Api) -> None:
    """That of k8s/components/tensorboard, which its Deployment would replace for ever."""
    text = (ROOT / "k8s" / "components" / "tensorboard" / "tensorboard.yaml").read_text()
    labels = {**yaml.safe_load(text)["spec"]["template"]["metadata"]["labels"], "app.kubernetes.io/instance": "linear"}
    meta = {"name": "board", "uid": "b", "labels": labels}
    theirs = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}, "status": {}}
    platform = Kubernetes()
    platform.apply(Request(load_job(JOB), JOB))
    api.objects["pods", "board"] = theirs
    assert platform.remove("linear", results=True)
    assert api.objects == {("pods", "board"): theirs}


def test_a_fleet_that_an_older_psfleet_started_is_not_ended_before_it_has_saved(api: Api) -> None:
    """The index 0 of its Job of workers is the chief, which has no Job of its own."""
    platform, request = Kubernetes(), Request(load_job(JOB, ["fleet.workers=2"]), JOB)
    platform.apply(request)
    del api.objects["jobs", "linear-chief"]
    workers = api.objects["jobs", "linear-worker"]
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    container["env"] = [each for each in container["env"] if each["name"] != "PSFLEET_FIRST_INDEX"]
    before = set(api.objects)
    for end in (lambda: start(platform, request), lambda: down(platform, "linear", results=False)):
        with pytest.raises(
            UsageError, match="fleet linear was started by an older psfleet, and runs: expected that ve"
        ):
            end()
        assert set(api.objects) == before
    workers["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": ""}]}
    down(platform, "linear", results=False)
    assert set(api.objects) == {("persistentvolumeclaims", "linear")}


def test_a_fleet_without_ps_has_the_certificate_of_workers_alone(api: Api) -> None:
    study = driven_job(tls=True)
    Kubernetes().apply(Request(study, JOB, activity=ACTIVITY))
    assert [name for kind, name in api.objects if kind == "secrets"] == [f"{study.name}-worker-tls"]


def test_down_removes_what_is_left_of_a_fleet_without_jobs(api: Api) -> None:
    """The API refused one, or objects did not get their owner before its connection broke; Secrets have keys."""
    platform = Kubernetes()
    platform.apply(Request(load_job(JOB, ["tls=true"]), JOB))
    for key in [key for key in api.objects if key[0] == "jobs"]:
        del api.objects[key]
    down(platform, "linear", results=False)
    assert set(api.objects) == {("persistentvolumeclaims", "linear")}
    with pytest.raises(UsageError, match="no fleet linear is in namespace here"):
        down(platform, "linear", results=False)
