"""Rendered Kubernetes manifests: those in the tree are what the renderer makes, they are valid, and closed."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.json_patch import with_component
from support.kubernetes_schema import problem, versions

from psfleet.job.job import Job, load_job, parse_job
from psfleet.manifests.kubernetes.names import addresses
from psfleet.manifests.kubernetes.render import manifests_text, render
from psfleet.service import settings

ROOT = Path(__file__).parents[5]
K8S = ROOT / "k8s"
LENET = ROOT / "examples/lenet/job.yaml"
JOB = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 2, "spares": 1},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 4},
}
Object = dict[str, Any]


def rendered(tmp_path: Path, **changes: Any) -> list[Object]:
    (tmp_path / "program.py").write_text("def build():\n    return None\n")
    return render(parse_job({**JOB, **changes}), tmp_path / "job.yaml")


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def pods(objects: list[Object]) -> list[Object]:
    found = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("Job", "Deployment")]
    assert found, "no object has pods"
    return found


@functools.cache
def in_the_tree() -> list[Object]:
    """Every object of every file below k8s/, and the base with each component; read-only."""
    files = [path for path in sorted(K8S.rglob("*.yaml")) if path.name != "kustomization.yaml"]
    found = [content for path in files for content in yaml.safe_load_all(path.read_text())]
    base = list(yaml.safe_load_all((K8S / "base/fleet.yaml").read_text()))
    for folder in sorted((K8S / "components").iterdir()):
        found += with_component(base, folder)
    return found


def distinct(objects: list[Object]) -> list[Object]:
    """Each object once: a component leaves most of the base as it is."""
    return list({json.dumps(each, sort_keys=True): each for each in objects}.values())


def test_the_base_is_the_example_as_it_is_rendered() -> None:
    command = "psfleet render kubernetes examples/lenet/job.yaml --out k8s/base/fleet.yaml"
    expected = manifests_text(load_job(LENET), LENET, command)
    assert (K8S / "base/fleet.yaml").read_text() == expected, f"run {command}"


@pytest.mark.parametrize("version", versions())
def test_all_manifests_of_the_tree_are_valid(version: str) -> None:
    assert len(in_the_tree()) > 60
    assert not [text for text in (problem(each, version) for each in distinct(in_the_tree())) if text]


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
def test_a_job_with_everything_is_valid(tmp_path: Path, version: str) -> None:
    container = {
        "mounts": ["images:/data"],
        "storage_class": "shared",
        "access_mode": "ReadWriteMany",
        "ps": {"memory": "512Mi", "cpus": 0.5},
    }
    objects = rendered(tmp_path, tls=True, container=container)
    assert not [text for text in (problem(each, version) for each in objects) if text]


def test_validation_sees_an_unknown_field(tmp_path: Path) -> None:
    job = only(rendered(tmp_path), "Job", "small-ps")
    job["spec"]["backofLimit"] = 3
    assert "backofLimit" in problem(job, "1.33")


def test_the_tls_component_makes_what_a_job_with_tls_renders() -> None:
    job = load_job(LENET, ["tls=true"])
    made = with_component(render(load_job(LENET), LENET), K8S / "components/tls")
    assert without_job_file(made) == without_job_file(render(job, LENET))


def test_components_can_be_used_together() -> None:
    job = load_job(LENET, ["tls=true", "container.program=image", "container.worker_image=my-program:1"])
    made = render(load_job(LENET), LENET)
    for name in ("tls", "program-from-image"):
        made = with_component(made, K8S / "components" / name)
    assert without_job_file(made) == without_job_file(render(job, LENET))


def test_the_image_component_makes_what_a_job_with_its_own_image_renders() -> None:
    job = load_job(LENET, ["container.program=image", "container.worker_image=my-program:1"])
    made = with_component(render(load_job(LENET), LENET), K8S / "components/program-from-image")
    assert without_job_file(made) == without_job_file(render(job, LENET))


def without_job_file(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each.get("data", {}).keys() != {"job.json"}]


def test_every_pod_is_restricted_and_has_no_token() -> None:
    found = pods(in_the_tree())
    assert {"chief", "ps", "worker"} <= {spec["containers"][0]["name"] for spec in found}
    for spec in found:
        assert spec["automountServiceAccountToken"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["resources"]["limits"]["memory"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]


@pytest.mark.parametrize("component", ["ps", "chief", "worker"])
def test_permanent_exit_codes_are_not_retried_and_disruptions_do_not_count(tmp_path: Path, component: str) -> None:
    """A worker that is refused (78) ends alone: the others may be enough."""
    spec = only(rendered(tmp_path), "Job", f"small-{component}")["spec"]
    *ends, disrupted, stopped = spec["podFailurePolicy"]["rules"]
    expected = {"FailJob": [64, 65, 70], "FailIndex": [78]} if component == "worker" else {"FailJob": [64, 65, 70, 78]}
    assert {rule["action"]: rule["onExitCodes"]["values"] for rule in ends} == expected
    assert [rule["action"] for rule in (disrupted, stopped)] == ["Ignore", "Ignore"]
    assert {rule["onExitCodes"]["containerName"] for rule in [*ends, stopped]} == {component}, "not a sidecar's"
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert spec["backoffLimitPerIndex"] == 10
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "suspend" not in spec, "whoever queues jobs says it"


def test_the_chief_has_a_job_of_its_own(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    chief, others = only(objects, "Job", "small-chief")["spec"], only(objects, "Job", "small-worker")["spec"]
    assert (chief["completions"], chief["parallelism"], chief["maxFailedIndexes"]) == (1, 1, 0)
    assert (others["completions"], others["parallelism"]) == (2, 2)
    assert "maxFailedIndexes" not in others, "a fleet that is scaled has another limit"


@pytest.mark.parametrize(
    ("update", "enough"),
    [
        ({"mode": "sync"}, 2),
        ({"mode": "sync", "quorum": 2}, 1),
        ({"mode": "sync", "quorum": 1}, 1),
        ({"mode": "async"}, 1),
    ],
    ids=["spare", "quorum", "chief", "async"],
)
def test_the_job_of_the_workers_needs_the_end_of_those_that_make_a_step(
    tmp_path: Path, update: Object, enough: int
) -> None:
    """A spare that found no node keeps no Job from its end."""
    objects = rendered(tmp_path, fleet={"ps": 2, "workers": 3, "spares": 2}, update=update)
    assert only(objects, "Job", "small-worker")["spec"]["successPolicy"] == {"rules": [{"succeededCount": enough}]}


def test_a_fleet_of_one_worker_is_its_chief(tmp_path: Path) -> None:
    objects = rendered(tmp_path, fleet={"ps": 1, "workers": 1})
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "Job"] == ["small-ps", "small-chief"]


def test_the_objects_of_two_jobs_have_different_names(tmp_path: Path) -> None:
    names = ["small", "small-program", "small-ps", "small-worker", "small-worker-tls", "small-results", "small-chief"]
    found = [
        (each["kind"], each["metadata"]["name"]) for name in names for each in rendered(tmp_path, name=name, tls=True)
    ]
    assert len(set(found)) == len(found)


def test_ended_jobs_are_kept_until_their_results_are_copied(tmp_path: Path) -> None:
    for keep_secs, expected in ((0, 300), (3600, 3600)):
        jobs = [each for each in rendered(tmp_path, container={"keep_secs": keep_secs}) if each["kind"] == "Job"]
        assert [each["spec"]["ttlSecondsAfterFinished"] for each in jobs] == [expected] * 3


def test_one_ps_at_a_time_is_evicted(tmp_path: Path) -> None:
    assert only(rendered(tmp_path), "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    one = rendered(tmp_path, fleet={"ps": 1, "workers": 1})
    assert only(one, "PodDisruptionBudget")["spec"]["minAvailable"] == 0, "a node with the only ps can be drained"


def test_pods_know_their_index_and_their_name_in_dns(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    for component, index in (("ps", 4), ("chief", 4), ("worker", 5)):
        spec = only(objects, "Job", f"small-{component}")["spec"]["template"]["spec"]
        variables = {entry["name"]: entry.get("value", "4") for entry in spec["containers"][0]["env"]}
        names = list(variables)
        assert names.index("JOB_COMPLETION_INDEX") < names.index("PSFLEET_ADDRESS"), "what is used comes first"
        assert variables["PSFLEET_ADDRESS"] == f"small-{component}-$(JOB_COMPLETION_INDEX).small:2222"
        read = settings.read({name: variables[name] for name in variables if name.endswith("_INDEX")})
        assert read.index == index, "that of a Job, of which another one has the first"
        assert variables["PSFLEET_PS"] == "small-ps-0.small:2222,small-ps-1.small:2222"
        assert spec["subdomain"] == only(objects, "Service")["metadata"]["name"]
        assert ("PSFLEET_START" in names) == (component == "chief"), "the attempt is that of its Job"
        assert ("PSFLEET_ON_SIGTERM" in names) == (component != "ps")
    assert [at.host for at in addresses(parse_job(JOB))] == ["small-ps-0.small", "small-ps-1.small"]


@pytest.mark.parametrize(("tls", "data"), [(False, {"tensorflow": 2222}), (True, {"tunnel": 2225})])
def test_pods_and_service_have_the_exchange_port_of_a_ps_with_tls_or_without(
    tmp_path: Path, tls: bool, data: dict[str, int]
) -> None:
    without = {**data, "control": 2223}
    ps = {**without, "exchange": 2226}
    objects = rendered(tmp_path, tls=tls)
    assert named_ports(only(objects, "Service")["spec"], "port") == ps
    for component, expected in (("ps", ps), ("chief", without), ("worker", without)):
        assert of_container(objects, component) == {**expected, "metrics": 2224}
    colocated = rendered(tmp_path, tls=tls, fleet={"workers": 2, "colocate": True})
    for component in ("chief", "worker"):
        assert of_container(colocated, component) == {**ps, "metrics": 2224}


def named_ports(content: Object, key: str) -> dict[str, int]:
    """The ports of a Service or container by name."""
    return {each["name"]: each[key] for each in content["ports"]}


def of_container(objects: list[Object], component: str) -> dict[str, int]:
    """The ports of the container of a Job by name."""
    (container,) = only(objects, "Job", f"small-{component}")["spec"]["template"]["spec"]["containers"]
    return named_ports(container, "containerPort")


def test_what_a_container_asks_for_is_what_it_may_have(tmp_path: Path) -> None:
    objects = rendered(tmp_path, container={"worker": {"memory": "1Gi", "cpus": 1.5}})
    expected = {"memory": "1Gi", "cpu": "1500m"}
    for name in ("small-chief", "small-worker"):
        container = only(objects, "Job", name)["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"] == {"requests": expected, "limits": expected}


def test_data_of_the_job_are_mounted_read_only_into_workers(tmp_path: Path) -> None:
    objects = rendered(tmp_path, container={"mounts": ["images:/data"]})
    for name in ("small-chief", "small-worker"):
        spec = only(objects, "Job", name)["spec"]["template"]["spec"]
        assert {"name": "data-0", "mountPath": "/data", "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert "images" not in json.dumps(only(objects, "Job", "small-ps"))


def test_ps_that_run_elsewhere_are_reached_and_not_started(tmp_path: Path) -> None:
    objects = rendered(tmp_path, fleet={"ps": 1, "workers": 2, "ps_addresses": ["10.0.0.1:7000"]})
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "Job"] == ["small-worker", "small-chief"]
    egress = only(objects, "NetworkPolicy", "small")["spec"]["egress"]
    assert [port["port"] for port in egress[-1]["ports"]] == [7000, 7001, 7004]


def test_the_job_file_is_in_the_config_map(tmp_path: Path) -> None:
    text = only(rendered(tmp_path), "ConfigMap", "small")["data"]["job.json"]
    job: Job = parse_job(json.loads(text))
    assert job == parse_job(JOB)


def test_only_the_chief_of_a_run_that_is_paused_holds_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    paused = render(parse_job(JOB), tmp_path / "job.yaml", paused=True)
    held = {"name": "PSFLEET_HOLD", "value": "start"}
    for content in (each for each in paused if each["kind"] == "Job"):
        variables = content["spec"]["template"]["spec"]["containers"][0]["env"]
        assert (held in variables) == (content["metadata"]["name"] == "small-chief")
        if held in variables:
            variables.remove(held)
    assert paused == render(parse_job(JOB), tmp_path / "job.yaml")
