"""Where the members of a service on Kubernetes find their models."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kubernetes_schema import problem, versions
from support.service_objects import MEMBERS, NAME, described, objects_of, only, pod, rendered, with_folder
from support.service_samples import of_cluster, plan_of, with_plan

from psfleet.manifests.kubernetes.service_models import writer


def test_copies_of_models_are_on_a_claim_of_the_service_from_which_members_mount_their_own(tmp_path: Path) -> None:
    objects = objects_of(with_folder(tmp_path))
    found = only(objects, "PersistentVolumeClaim", NAME)
    assert found["metadata"]["labels"]["psfleet.activity"] == "service"
    mounted = []
    for index in range(4):
        spec = pod(objects, f"{NAME}-member-{index}")["spec"]
        (volume,) = [each for each in spec["volumes"] if each["name"] == "model"]
        (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "model"]
        assert mount["readOnly"]
        mounted.append((volume["persistentVolumeClaim"]["claimName"], mount.get("subPath")))
    assert mounted == [("one", None), (NAME, "models/1")] * 2
    assert pod(objects, MEMBERS[1])["metadata"]["labels"]["psfleet.model-claim"] == NAME
    assert "PersistentVolumeClaim" not in {each["kind"] for each in rendered(tmp_path)}


def test_a_model_in_a_store_is_mounted_nowhere(tmp_path: Path) -> None:
    made = of_cluster(tmp_path)
    models = (plan_of(made).models[0].model_copy(update={"fleet": ""}),)
    objects = objects_of(with_plan(made, models=models))
    assert {each["name"] for each in pod(objects, MEMBERS[0])["spec"]["volumes"]} == {"tmp", "job", "program", "data-0"}
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_the_pod_that_writes_copies_is_restricted_and_beside_the_members(tmp_path: Path, mode: str) -> None:
    job = described(with_folder(tmp_path).job, container={"access_mode": mode, "worker_image": "mine"})
    found = writer(job, f"{NAME}-models-1")
    assert problem(found, versions()[-1]) == ""
    (own_container,) = found["spec"]["containers"]
    assert (own_container["image"], own_container["name"]) == ("mine", "models")
    (mount,) = own_container["volumeMounts"]
    assert (mount["mountPath"], mount.get("readOnly", False)) == ("/out", False)
    assert found["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": NAME}
    assert own_container["securityContext"]["readOnlyRootFilesystem"]
    is_disk = mode == "ReadWriteOnce"
    assert ("psfleet.model-claim" in found["metadata"]["labels"], "affinity" in found["spec"]) == (is_disk, is_disk)
