"""The Kubernetes objects of a fleet that drives a study: two Jobs, closed and restricted as those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.activity_samples import ACTIVITY, driven_job
from support.kubernetes_schema import problem, versions

from psfleet.errors import PERMANENT_CODES, UsageError
from psfleet.job.activity import Activity
from psfleet.manifests.container import LIFE_CHECK
from psfleet.manifests.kubernetes.driven import render
from psfleet.manifests.kubernetes.names import ACTIVITY as LABEL
from psfleet.manifests.kubernetes.render import render as render_run
from psfleet.service.life_check import LOOK_SECS, LOOKS

Object = dict[str, Any]
EVERYTHING = {
    "container": {"worker": {"memory": "1Gi", "cpus": 2}, "mounts": ["claim:/data"], "storage_class": "shared"},
    "kubernetes": {
        "egress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
        "worker": {"env": {"A": "1"}, "service_account": "mine", "secret_files": ["secret:/secret"]},
        "job_labels": {"queue": "one"},
    },
    "tls": True,
}


OF_RUN = ACTIVITY.model_copy(update={"model_fleet": "digits"})


def rendered(folder: Path, activity: Activity = ACTIVITY, **sections: Any) -> list[Object]:
    (folder / "program.py").write_text("def build():\n    return None\n")
    return render(driven_job(**sections), activity, folder / "job.yaml")


def only(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod(objects: list[Object], component: str) -> Object:
    return only(objects, "Job", f"small-{component}")["spec"]["template"]


def environment(objects: list[Object], component: str) -> dict[str, Any]:
    (own,) = pod(objects, component)["spec"]["containers"]
    return {each["name"]: each.get("value") for each in own["env"]}


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
@pytest.mark.parametrize("sections", [{}, EVERYTHING], ids=["default", "everything"])
@pytest.mark.parametrize("activity", [ACTIVITY, OF_RUN], ids=["study", "with a model"])
def test_all_objects_are_valid(tmp_path: Path, activity: Activity, sections: Object, version: str) -> None:
    objects = rendered(tmp_path, activity, **sections)
    assert not [text for text in (problem(each, version) for each in objects) if text]


def test_there_are_a_driver_and_its_workers_and_nothing_of_ps(tmp_path: Path) -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in rendered(tmp_path)}
    assert names == {
        ("ServiceAccount", "small-worker"), ("ConfigMap", "small"), ("PersistentVolumeClaim", "small"),
        ("Service", "small"), ("NetworkPolicy", "small"), ("NetworkPolicy", "small.chief"),
        ("NetworkPolicy", "small.worker"), ("Job", "small-worker"), ("Job", "small-chief"),
        ("ConfigMap", "small.program"),
    }  # fmt: skip


def test_each_side_runs_its_module_with_its_variables(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    driver, worker = environment(objects, "chief"), environment(objects, "worker")
    modules = [pod(objects, name)["spec"]["containers"][0]["command"][-1] for name in ("chief", "worker")]
    assert modules == ["psfleet.sweep", "worker_service.trial"]
    assert driver["PSFLEET_STUDY"] == '{"path": "$$HOME"}', "Kubernetes would look for a variable"
    assert worker["PSFLEET_DRIVER"] == "small-chief-0.small:2222"
    assert worker["PSFLEET_FIRST_INDEX"] == "0"
    assert not {"PSFLEET_PS", "PSFLEET_METRICS_PORT"} & (driver.keys() | worker.keys())
    assert "PSFLEET_TRIALS" not in driver
    assert "PSFLEET_STUDY" not in worker


def test_a_pod_of_a_worker_is_alive_while_the_file_of_its_process_is_renewed(tmp_path: Path) -> None:
    """By the same check as containers of a service."""
    objects = rendered(tmp_path, deadlines={"start_secs": 90})
    (worker,) = pod(objects, "worker")["spec"]["containers"]
    probe = worker["livenessProbe"]
    assert environment(objects, "worker")["PSFLEET_LIFE"] == "/tmp/psfleet-life"
    assert probe["exec"]["command"] == [*LIFE_CHECK, "/tmp/psfleet-life", "--start-secs", "90"]
    assert probe["timeoutSeconds"] > LOOKS * LOOK_SECS


def test_only_the_driver_has_a_port_health_and_the_volume(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    (driver,), (worker,) = (pod(objects, name)["spec"]["containers"] for name in ("chief", "worker"))
    assert driver["ports"] == [{"name": "control", "containerPort": 2223}]
    assert worker["ports"] == []
    assert {"startupProbe", "livenessProbe"} <= driver.keys()
    assert "startupProbe" not in worker
    assert "exec" in worker["livenessProbe"]
    mounted = [{mount["name"] for mount in each["volumeMounts"]} for each in (driver, worker)]
    assert ["results" in names for names in mounted] == [True, False]


def test_the_driver_alone_mounts_the_results_that_have_the_model(tmp_path: Path) -> None:
    driver, worker = (pod(rendered(tmp_path, OF_RUN), name)["spec"] for name in ("chief", "worker"))
    assert {"name": "model", "mountPath": "/model", "readOnly": True} in driver["containers"][0]["volumeMounts"]
    claim = {"claimName": "digits", "readOnly": True}
    assert {"name": "model", "persistentVolumeClaim": claim} in driver["volumes"]
    assert "model" not in {each["name"] for each in worker["volumes"]}
    affinity = driver["affinity"]["podAffinity"]
    near = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    of_run, of_services = (each["podAffinityTerm"]["labelSelector"]["matchLabels"] for each in near)
    assert of_run["app.kubernetes.io/instance"] == "digits"
    assert of_services == {"psfleet.model-claim": "digits"}
    assert "requiredDuringSchedulingIgnoredDuringExecution" in affinity, "its own volume"


def test_a_volume_of_many_nodes_can_be_mounted_on_any(tmp_path: Path) -> None:
    objects = rendered(tmp_path, OF_RUN, container={"access_mode": "ReadWriteMany"})
    assert "affinity" not in pod(objects, "chief")["spec"]


def test_a_model_in_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is in /runs/digits on this machine, which pods cannot mount"):
        rendered(tmp_path, ACTIVITY.model_copy(update={"model_folder": "/runs/digits"}))


def test_pods_are_those_of_a_run_otherwise(tmp_path: Path) -> None:
    objects = rendered(tmp_path, **EVERYTHING)
    of_run = render_run(driven_job(**EVERYTHING), tmp_path / "job.yaml")
    for component in ("chief", "worker"):
        found, expected = pod(objects, component)["spec"], pod(of_run, component)["spec"]
        assert {key: found[key] for key in expected if key != "containers"} == {
            key: expected[key] for key in expected if key != "containers"
        }
        (own,), (other,) = found["containers"], expected["containers"]
        same = ("image", "resources", "securityContext", "volumeMounts", "imagePullPolicy")
        assert {key: own[key] for key in same} == {key: other[key] for key in same}
    assert only(objects, "Job", "small-worker")["metadata"]["labels"]["queue"] == "one"


def test_only_workers_reach_the_driver_and_only_its_control_port(tmp_path: Path) -> None:
    objects = rendered(tmp_path, **EVERYTHING)
    own, driver, worker = (
        only(objects, "NetworkPolicy", name)["spec"] for name in ("small", "small.chief", "small.worker")
    )
    assert own["ingress"] == worker["ingress"] == driver["egress"] == []
    assert [*own["egress"][1:]] == EVERYTHING["kubernetes"]["egress"]  # type: ignore[index]
    assert all(
        "to" not in each and {port["port"] for port in each["ports"]} == {53, 5353} for each in own["egress"][:1]
    )
    (ingress,), (egress,) = driver["ingress"], worker["egress"]
    assert [port["port"] for port in ingress["ports"]] == [port["port"] for port in egress["ports"]] == [2223]
    assert ingress["from"][0]["podSelector"] == worker["podSelector"]
    assert egress["to"][0]["podSelector"] == driver["podSelector"]


def test_the_end_of_a_worker_costs_its_index_and_that_of_the_driver_ends_the_study(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    driver, worker = (only(objects, "Job", f"small-{name}")["spec"] for name in ("chief", "worker"))
    assert (driver["completions"], worker["completions"]) == (1, 2)
    actions = [each["podFailurePolicy"]["rules"][0] for each in (driver, worker)]
    assert [each["action"] for each in actions] == ["FailJob", "FailIndex"]
    assert [each["onExitCodes"]["values"] for each in actions] == [sorted(PERMANENT_CODES)] * 2
    assert "successPolicy" not in worker
    assert "maxFailedIndexes" not in worker
    assert worker["backoffLimitPerIndex"] == driver["backoffLimitPerIndex"] == 10


def test_jobs_pods_and_volume_say_what_the_fleet_does(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    labelled = [only(objects, "PersistentVolumeClaim", "small")]
    labelled += [
        each for name in ("chief", "worker") for each in (only(objects, "Job", f"small-{name}"), pod(objects, name))
    ]
    assert {each["metadata"]["labels"][LABEL] for each in labelled} == {"study"}
    data = only(objects, "ConfigMap", "small")["data"]
    assert Activity.from_json(data["activity.json"], "it") == ACTIVITY
