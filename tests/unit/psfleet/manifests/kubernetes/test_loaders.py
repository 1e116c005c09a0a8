"""The loaders of a job on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_schema import problem, versions

from psfleet.job.job import parse_job
from psfleet.manifests.kubernetes.pod_template import Object
from psfleet.manifests.kubernetes.render import render
from psfleet.manifests.kubernetes.tls_secrets import tls_secrets
from psfleet.manifests.on_fleet import OnFleet
from psfleet.tls import certificates

JOB: dict[str, Any] = {
    "name": "small",
    "program": "program:build",
    "input": {"from": "loaders", "loaders": 2},
    "fleet": {"ps": 1, "workers": 2, "max_restarts": 7},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}


def rendered(folder: Path, **sections: Any) -> list[Object]:
    (folder / "program.py").touch()
    return render(parse_job({**JOB, **sections}), folder / "job.yaml")


def job_of(objects: list[Object], component: str) -> Object:
    (found,) = [each["spec"] for each in objects if each["metadata"]["name"] == f"small-{component}" and "spec" in each
                and each["kind"] == "Job"]  # fmt: skip
    return dict(found)


def pod_of(objects: list[Object], component: str) -> Object:
    return dict(job_of(objects, component)["template"]["spec"])


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
def test_the_manifests_are_valid(tmp_path: Path, version: str) -> None:
    objects = rendered(tmp_path, tls=True, container={"mounts": ["images:/data"], "loader": {"cpus": 0.5}})
    assert not [text for text in (problem(each, version) for each in objects) if text]


def test_loaders_are_a_job_that_restarts_them_one_by_one(tmp_path: Path) -> None:
    found = job_of(rendered(tmp_path), "loader")
    assert (found["completions"], found["parallelism"]) == (2, 2)
    assert (found["backoffLimitPerIndex"], found["maxFailedIndexes"]) == (7, 0)
    (failing, *_) = found["podFailurePolicy"]["rules"]
    assert failing["onExitCodes"] == {"containerName": "loader", "operator": "In", "values": [64, 65, 70, 78]}


def test_a_loader_is_as_closed_as_a_worker_and_reads_the_same_files(tmp_path: Path) -> None:
    objects = rendered(tmp_path, checkpoint={"shared": True}, container={"mounts": ["images:/data"]})
    loader, worker = pod_of(objects, "loader"), pod_of(objects, "worker")
    own, others = loader["containers"][0], worker["containers"][0]
    for key in ("securityContext", "image", "resources", "startupProbe", "livenessProbe"):
        assert own[key] == others[key], key
    assert loader["securityContext"] == worker["securityContext"]
    assert loader["serviceAccountName"] == "small-loader"
    assert own["command"][-2:] == ["-m", "worker_service.loader"]
    targets = [{each["mountPath"] for each in pod["volumeMounts"]} for pod in (own, others)]
    assert targets[1] - targets[0] == {"/out"}, "a loader has no results"
    assert not targets[0] - targets[1]


def test_every_pod_knows_the_addresses_of_the_loaders(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    # Those that `psfleet scale` can add, too.
    addresses = [f"small-loader-{index}.small:2222" for index in range(4)]
    for component in ("ps", "loader", "chief", "worker"):
        values = {each["name"]: each.get("value") for each in pod_of(objects, component)["containers"][0]["env"]}
        assert values["PSFLEET_LOADERS"].split(",") == addresses, component
    env = {each["name"]: each.get("value") for each in pod_of(objects, "loader")["containers"][0]["env"]}
    assert env["PSFLEET_ADDRESS"] == "small-loader-$(JOB_COMPLETION_INDEX).small:2222"
    assert "PSFLEET_FIRST_INDEX" not in env


def test_settings_of_pods_apply_to_loaders_and_their_own_to_them_alone(tmp_path: Path) -> None:
    section = {"labels": {"team": "a"}, "loader": {"env": {"S3_REGION": "one"}}, "worker": {"env": {"OF": "workers"}}}
    objects = rendered(tmp_path, kubernetes=section)
    pod = job_of(objects, "loader")["template"]
    names = [each["name"] for each in pod["spec"]["containers"][0]["env"]]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert ("S3_REGION" in names, "OF" in names) == (True, False)


def test_with_tls_a_loader_has_the_secret_of_its_role_and_its_two_tunnels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    certificates.make(tmp_path / ".psfleet" / "certs" / "small")
    job = parse_job({**JOB, "tls": True})
    names = [each["metadata"]["name"] for each in tls_secrets(job)]
    assert names == ["small-ps-tls", "small-loader-tls", "small-worker-tls"]
    pod = pod_of(rendered(tmp_path, tls=True), "loader")
    assert pod["volumes"][-1]["secret"] == {"secretName": "small-loader-tls"}
    open_ports = {each["name"]: each["containerPort"] for each in pod["containers"][0]["ports"]}
    assert open_ports == {"tunnel": 2225, "batches": 2229, "control": 2223, "metrics": 2224}


def test_on_a_standing_fleet_loaders_have_its_certificates_and_the_id_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    job = parse_job({**JOB, "tls": True, "fleet": {"ps": 1, "workers": 2, "ps_addresses": ["lab-ps-0.lab:2222"]}})
    pod = pod_of(render(job, tmp_path / "job.yaml", place=OnFleet("lab", "small-id")), "loader")
    assert pod["volumes"][-1]["secret"] == {"secretName": "lab-loader-tls"}
    values = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert values["PSFLEET_RUN"] == "small-id"


def test_a_job_without_loaders_has_no_trace_of_them(tmp_path: Path) -> None:
    assert "loader" not in str(rendered(tmp_path, input={"from": "worker"}))
