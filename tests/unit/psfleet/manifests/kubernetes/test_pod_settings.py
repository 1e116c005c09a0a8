"""The job file's `kubernetes` section in the rendered manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_schema import problem, versions

from psfleet.job.job import Job, parse_job
from psfleet.manifests.kubernetes.pod_settings import apply_placement
from psfleet.manifests.kubernetes.pod_template import reader
from psfleet.manifests.kubernetes.render import render

Object = dict[str, Any]
ZONE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}
            ]
        }
    }
}
FRIENDS = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}
SPOT = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
STORE: Object = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"protocol": "TCP", "port": 443}]}
EVERYTHING: Object = {
    "labels": {"team": "ads"},
    "annotations": {"sidecar.istio.io/inject": "false"},
    "env": {"LEVEL": "1"},
    "secret_env": {"AWS_SECRET_ACCESS_KEY": "s3:secret"},
    "env_from_secrets": ["wandb"],
    "secret_files": ["gcs-key:/var/run/gcs"],
    "node_selector": {"disk": "ssd"},
    "tolerations": [SPOT],
    "affinity": ZONE,
    "priority_class": "batch",
    "ps": {"service_account": "reader"},
    "worker": {"resources": {"nvidia.com/gpu": 1, "ephemeral-storage": "2Gi"}},
    "job_labels": {"kueue.x-k8s.io/queue-name": "team"},
    "job_annotations": {"owner": "me"},
    "image_pull_secrets": ["registry"],
    "image_pull_policy": "Always",
    "egress": [STORE],
}


def job(**kubernetes: Any) -> Job:
    """A job with this section."""
    content = {"name": "small", "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    return parse_job({**content, "train": {"steps": 10, "batch_size": 4}, "kubernetes": kubernetes})


def rendered(folder: Path, **kubernetes: Any) -> dict[tuple[str, str], Object]:
    """The objects of a fleet by kind and name."""
    objects = render(job(**kubernetes), folder / "job.yaml")
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
def test_a_job_with_all_settings_is_valid(tmp_path: Path, version: str) -> None:
    assert not [text for text in (problem(each, version) for each in rendered(tmp_path, **EVERYTHING).values()) if text]


@pytest.mark.parametrize("role", ["ps", "chief"])
def test_pods_have_the_settings_of_the_job(tmp_path: Path, role: str) -> None:
    workload = rendered(tmp_path, **EVERYTHING)["Job", f"small-{role}"]
    assert workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert workload["metadata"]["annotations"] == {"owner": "me"}
    pod, spec = workload["spec"]["template"]["metadata"], workload["spec"]["template"]["spec"]
    assert pod["labels"]["team"] == "ads"
    assert pod["labels"]["app.kubernetes.io/instance"] == "small"
    assert pod["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert "kueue.x-k8s.io/queue-name" not in pod["labels"], "a queue holds the Job, not each pod again"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["nodeSelector"], spec["tolerations"], spec["priorityClassName"]) == ({"disk": "ssd"}, [SPOT], "batch")
    assert spec["affinity"]["nodeAffinity"] == ZONE["nodeAffinity"]
    assert spec["containers"][0]["imagePullPolicy"] == "Always"


def test_variables_and_files_come_from_secrets(tmp_path: Path) -> None:
    spec = rendered(tmp_path, **EVERYTHING)["Job", "small-chief"]["spec"]["template"]["spec"]
    container = spec["containers"][0]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["LEVEL"]["value"] == "1"
    assert variables["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "s3", "key": "secret"}}
    assert "PSFLEET_PS" in variables
    assert container["envFrom"] == [{"secretRef": {"name": "wandb"}}]
    assert {"name": "secret-0", "mountPath": "/var/run/gcs", "readOnly": True} in container["volumeMounts"]
    assert {"name": "secret-0", "secret": {"secretName": "gcs-key"}} in spec["volumes"]


def test_only_workers_get_a_gpu_besides_their_memory(tmp_path: Path) -> None:
    objects = rendered(tmp_path, **EVERYTHING)
    found = [
        objects["Job", f"small-{role}"]["spec"]["template"]["spec"]["containers"][0]["resources"]
        for role in ("ps", "chief")
    ]
    amounts = {"memory": "2Gi", "nvidia.com/gpu": "1", "ephemeral-storage": "2Gi"}
    assert found == [
        {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        {"requests": amounts, "limits": amounts},
    ]


def test_a_service_account_that_exists_is_used_and_not_made(tmp_path: Path) -> None:
    objects = rendered(tmp_path, **EVERYTHING)
    assert [name for kind, name in objects if kind == "ServiceAccount"] == ["small-worker"]
    spec = objects["Job", "small-ps"]["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("reader", False)


def test_affinities_between_pods_are_added_to_those_of_psfleet(tmp_path: Path) -> None:
    own = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [FRIENDS]}}
    spec = rendered(tmp_path, affinity=own)["Job", "small-ps"]["spec"]["template"]["spec"]
    plain = rendered(tmp_path)["Job", "small-ps"]["spec"]["template"]["spec"].get("affinity", {})
    terms = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == [FRIENDS, *plain.get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])]


def test_the_policy_opens_what_the_job_adds_and_no_more(tmp_path: Path) -> None:
    egress = rendered(tmp_path, egress=[STORE])["NetworkPolicy", "small"]["spec"]["egress"]
    assert egress == [*rendered(tmp_path)["NetworkPolicy", "small"]["spec"]["egress"], STORE]


def test_the_pod_that_reads_results_runs_where_workers_may_and_has_none_of_their_secrets() -> None:
    described = job(**EVERYTHING)
    pod = apply_placement(described.kubernetes, reader(described, "small-results-1"))
    spec = pod["spec"]
    assert not problem(pod, versions()[-1])
    assert (spec["tolerations"], spec["imagePullSecrets"]) == ([SPOT], [{"name": "registry"}])
    assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    (container,) = spec["containers"]
    assert not {"env", "envFrom"} & container.keys()
    assert container["imagePullPolicy"] == "Always"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


@pytest.mark.parametrize(("cpus", "expected"), [({"ps": 2}, "500m"), ({"worker": 0.25}, "250m"), ({}, None)])
def test_the_pod_that_reads_results_has_a_limit_of_cpus_if_the_fleet_has_one(
    cpus: dict[str, float], expected: str | None
) -> None:
    """A namespace with a quota of CPUs refuses pods without one."""
    container = {role: {"cpus": number} for role, number in cpus.items()}
    described = parse_job({**job().model_dump(mode="json"), "container": container})
    (made,) = reader(described, "small-results-1")["spec"]["containers"]
    assert [amounts.get("cpu") for amounts in made["resources"].values()] == [expected, expected]
