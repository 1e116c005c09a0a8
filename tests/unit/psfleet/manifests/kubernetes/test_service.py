"""The Kubernetes objects of a service: Deployments of a front and members, closed and restricted as those of a run."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest
from support.kubernetes_schema import problem, versions
from support.service_objects import (
    MEMBERS,
    NAME,
    PODS,
    Object,
    access,
    environment,
    objects_of,
    only,
    own,
    pod,
    rendered,
    with_folder,
)
from support.service_samples import of_cluster, plan_of, with_plan, with_token

from psfleet.errors import BadJobError
from psfleet.job.activity import Activity

CLIENT_PORTS = [8000, 8001]
EVERYTHING: Object = {
    "container": {"worker": {"memory": "1Gi", "cpus": 2}, "mounts": ["claim:/data"]},
    "kubernetes": {
        "egress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
        "image_pull_secrets": ["registry"],
        "node_selector": {"disk": "ssd"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "worker": {
            "env": {"A": "1"},
            "service_account": "mine",
            "secret_files": ["secret:/secret"],
            "secret_env": {"KEY": "store:key"},
            "resources": {"nvidia.com/gpu": 1},
        },
    },
    "tls": True,
}


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
@pytest.mark.parametrize("sections", [{}, EVERYTHING], ids=["default", "everything"])
def test_all_objects_are_valid(tmp_path: Path, sections: Object, version: str) -> None:
    objects = rendered(tmp_path, sections, metrics_port=9000, **with_token(tmp_path))
    objects += objects_of(with_folder(tmp_path), sections)
    assert not [text for text in (problem(each, version) for each in objects) if text]


def test_there_are_a_front_and_its_members_and_the_front_is_last(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert set(names) == {
        ("ServiceAccount", f"{NAME}-front"), ("ServiceAccount", f"{NAME}-member"), ("ConfigMap", NAME),
        ("ConfigMap", f"{NAME}.0.program"), ("ConfigMap", f"{NAME}.1.program"), ("Service", NAME),
        ("Service", f"{NAME}-front"), ("Service", f"{NAME}-member"), ("NetworkPolicy", NAME),
        ("NetworkPolicy", f"{NAME}.front"), ("NetworkPolicy", f"{NAME}.member"),
        *(("Deployment", name) for name in PODS),
    }  # fmt: skip
    assert names[-1] == ("Deployment", f"{NAME}-front")
    data = only(objects, "ConfigMap", NAME)["data"]
    assert Activity.from_json(data["activity.json"], "it") == of_cluster(tmp_path).activity


def test_a_token_and_a_key_in_the_folder_of_a_program_are_in_the_secret_alone(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    made = of_cluster(tmp_path, **with_token(tmp_path / "one"))
    (tmp_path / "one" / "front.key").write_bytes(b"the private key\n")
    found = objects_of(replace(made, front_files={**made.front_files, "tls.key": b"the private key\n"}))
    (program,) = [each for each in found if each["metadata"]["name"] == f"{NAME}.0.program"]
    assert set(program["data"]) == {"program.py"}
    assert set(only(found, "Secret", f"{NAME}-front")["data"]) == {"token", "tls.key"}


def test_each_process_has_its_module_index_and_address(tmp_path: Path) -> None:
    objects = rendered(tmp_path, replicas=2)
    names = [*PODS, f"{NAME}-member-2", f"{NAME}-member-3"]
    assert [own(objects, name)["command"][-1] for name in names] == ["worker_service.front"] + 4 * [
        "worker_service.member"
    ]
    assert [environment(objects, name)["PSFLEET_INDEX"] for name in names] == ["0", "0", "1", "2", "3"]
    addresses = [environment(objects, name)["PSFLEET_ADDRESS"] for name in names]
    assert addresses[0] == f"{NAME}-front:2222"
    assert addresses[2] == f"{NAME}-member-1.{NAME}-member:2222"
    assert {access(objects, name).front for name in names} == {addresses[0]}
    assert [*access(objects, names[0]).members] == addresses[1:]
    hosts = [pod(objects, name)["spec"]["hostname"] for name in names]
    assert hosts == names
    assert not {"PSFLEET_PS", "PSFLEET_METRICS_PORT"} & environment(objects, names[0]).keys()


def test_names_lead_to_processes_that_are_not_ready_but_clients_only_to_a_front_that_is(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    clients, front, members = (only(objects, "Service", name)["spec"] for name in (NAME, PODS[0], f"{NAME}-member"))
    ports = [(each["name"], each["port"], each["targetPort"]) for each in clients["ports"]]
    assert ports == [("rest", 8080, 8000), ("grpc", 8081, 8001)]
    assert not {"clusterIP", "publishNotReadyAddresses"} & clients.keys()
    for each, name in ((front, PODS[0]), (members, MEMBERS[0])):
        assert (each["clusterIP"], each["publishNotReadyAddresses"]) == ("None", True)
        assert each["selector"].items() <= pod(objects, name)["metadata"]["labels"].items()
        other = MEMBERS[0] if name == PODS[0] else PODS[0]
        assert not each["selector"].items() <= pod(objects, other)["metadata"]["labels"].items()
    assert pod(objects, MEMBERS[1])["spec"]["subdomain"] == f"{NAME}-member"
    assert "subdomain" not in pod(objects, PODS[0])["spec"], "its Service has its name"


def test_each_member_mounts_its_own_model_and_program_read_only(tmp_path: Path) -> None:
    objects = rendered(tmp_path, replicas=2)
    for index, name in enumerate(("one", "two", "one", "two")):
        found = pod(objects, f"{NAME}-member-{index}")["spec"]
        volumes = {each["name"]: each for each in found["volumes"]}
        mounts = {each["mountPath"]: each for each in found["containers"][0]["volumeMounts"]}
        assert volumes["model"]["persistentVolumeClaim"] == {"claimName": name, "readOnly": True}
        program = only(objects, "ConfigMap", volumes["program"]["configMap"]["name"])
        assert program["data"] == {"program.py": f"NAME = '{name}'\n"}
        assert {path for path, each in mounts.items() if each.get("readOnly")} == {
            "/model", "/program", "/data", "/etc/psfleet"
        }  # fmt: skip
        source = access(objects, f"{NAME}-member-{index}").member
        assert source is not None
        assert source.best == (name == "two")
    assert {each["name"] for each in pod(objects, PODS[0])["spec"]["volumes"]} == {"tmp", "job"}


def test_members_of_one_disk_are_on_one_node_and_those_of_a_shared_file_system_anywhere(tmp_path: Path) -> None:
    found = pod(rendered(tmp_path, replicas=2), MEMBERS[1])
    (term,) = found["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    assert term["labelSelector"]["matchLabels"] == {"psfleet.model-claim": "two"}
    (near,) = found["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "two"
    shared = pod(rendered(tmp_path, {"container": {"access_mode": "ReadWriteMany"}}), MEMBERS[1])
    assert "affinity" not in shared["spec"]
    assert "psfleet.model-claim" not in shared["metadata"]["labels"]


def test_the_token_is_in_the_secret_of_the_front_alone(tmp_path: Path) -> None:
    made = of_cluster(tmp_path, **with_token(tmp_path))
    (tmp_path / "token").rename(tmp_path / "one" / "token")
    objects = objects_of(made)
    assert [*only(objects, "ConfigMap", f"{NAME}.0.program")["data"]] == ["program.py"], "not the file beside it"
    secret = only(objects, "Secret", f"{NAME}-front")
    assert {name: b64decode(text) for name, text in secret["data"].items()} == {"token": b"a-token-of-many-characters"}
    assert "a-token-of" not in json.dumps(objects)
    assert [json.dumps(each).count(secret["data"]["token"]) for each in objects if each != secret] == [0] * (
        len(objects) - 1
    )
    mounting = [
        name for name in PODS if "/out/front" in [each["mountPath"] for each in own(objects, name)["volumeMounts"]]
    ]
    assert mounting == [PODS[0]]
    options = access(objects, PODS[0]).options
    assert options is not None
    assert options.token_file == "/out/front/token"
    assert all(access(objects, name).options is None for name in MEMBERS)


def test_the_front_is_ready_when_it_says_so_and_frozen_processes_are_killed(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    ready = own(objects, PODS[0])["readinessProbe"]["httpGet"]
    assert ready == {"path": "/v2/health/ready", "port": 8000, "scheme": "HTTP"}
    assert "readinessProbe" not in own(objects, MEMBERS[0])
    for name, file in ((PODS[0], "/tmp/logs/front-0.alive"), (MEMBERS[1], "/tmp/logs/member-1.alive")):
        startup, life = (own(objects, name)[each]["exec"]["command"] for each in ("startupProbe", "livenessProbe"))
        assert life == ["python", "-m", "psfleet.service.life_check", file, "--start-secs", "180", "--end"]
        assert startup == life[:-1], "the file of the process before does not end the one that starts"
        assert environment(objects, name)["PSFLEET_OUT"] == "/tmp"
        assert pod(objects, name)["spec"]["restartPolicy"] == "Always"


def test_clients_reach_the_front_and_only_front_and_members_tensorflow(tmp_path: Path) -> None:
    for sections, data in (({}, 2222), (EVERYTHING, 2225)):
        objects = rendered(tmp_path, sections, metrics_port=9000)
        of_all, front, member = (
            only(objects, "NetworkPolicy", name)["spec"] for name in (NAME, f"{NAME}.front", f"{NAME}.member")
        )
        assert of_all["ingress"] == []
        assert [{port["port"] for port in each["ports"]} for each in of_all["egress"]] == [{53, 5353}]
        of_members, clients = front["ingress"]
        assert "from" not in clients
        assert [each["port"] for each in clients["ports"]] == [*CLIENT_PORTS, 2224]
        assert of_members["from"][0]["podSelector"] == member["podSelector"]
        (of_front,) = member["ingress"]
        assert of_front["from"][0]["podSelector"] == front["podSelector"]
        (to_members,), (to_front, *further) = front["egress"], member["egress"]
        assert to_members["to"][0]["podSelector"] == member["podSelector"]
        assert to_front["to"][0]["podSelector"] == front["podSelector"]
        assert further == sections.get("kubernetes", {}).get("egress", [])
        rules = (of_members, of_front, to_members, to_front)
        assert [[port["port"] for port in each["ports"]] for each in rules] == [[data]] * 4


def test_pods_are_restricted_and_only_members_have_what_programs_need(tmp_path: Path) -> None:
    objects = rendered(tmp_path, EVERYTHING, **with_token(tmp_path))
    for name in PODS:
        spec, container = pod(objects, name)["spec"], own(objects, name)
        assert (spec["automountServiceAccountToken"], spec["securityContext"]["runAsNonRoot"]) == (False, True)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["limits"]["memory"] == "1Gi"
        assert (spec["nodeSelector"], spec["imagePullSecrets"]) == ({"disk": "ssd"}, [{"name": "registry"}])
        assert {"name": "tls", "secret": {"secretName": f"{NAME}-worker-tls"}} in spec["volumes"]
        secs = {each["key"]: each.get("tolerationSeconds") for each in spec["tolerations"]}
        assert secs == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30, "spot": None}
    accounts = [pod(objects, name)["spec"]["serviceAccountName"] for name in PODS]
    assert accounts == [f"{NAME}-front", "mine", "mine"]
    for name, expected in zip(PODS, (False, True, True), strict=True):
        found = own(objects, name)
        variables = {each["name"] for each in found["env"]}
        mounts = {each["mountPath"] for each in found["volumeMounts"]}
        assert ({"A", "KEY"} <= variables, "nvidia.com/gpu" in found["resources"]["limits"]) == (expected, expected)
        assert ("/secret" in mounts, "/data" in mounts, "/program" in mounts) == (expected, expected, expected)


def test_the_metrics_are_served_when_asked_for(tmp_path: Path) -> None:
    objects = rendered(tmp_path, metrics_port=9000)
    assert environment(objects, PODS[0])["PSFLEET_METRICS_PORT"] == "2224"
    (metrics,) = [each for each in only(objects, "Service", NAME)["spec"]["ports"] if each["name"] == "metrics"]
    assert (metrics["port"], metrics["targetPort"]) == (9000, 2224)


def test_a_front_with_a_certificate_is_asked_by_https(tmp_path: Path) -> None:
    made = of_cluster(tmp_path)
    found = plan_of(made).access
    assert found.options is not None
    options = found.options.model_copy(update={"tls_cert": "/out/front/tls.crt"})
    files = {"tls.crt": b"c", "tls.key": b"k"}
    made = with_plan(replace(made, front_files=files), access=found.model_copy(update={"options": options}))
    objects = objects_of(made)
    assert own(objects, PODS[0])["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert set(only(objects, "Secret", f"{NAME}-front")["data"]) == {"tls.crt", "tls.key"}


def test_a_program_in_the_image_is_mounted_nowhere(tmp_path: Path) -> None:
    objects = rendered(tmp_path, {"container": {"program": "image"}})
    assert not [each for each in objects if each["metadata"]["name"].endswith(".program")]
    assert "/program" not in {each["mountPath"] for each in own(objects, MEMBERS[0])["volumeMounts"]}


def test_a_name_that_no_service_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadJobError, match="begins with a letter"):
        objects_of(of_cluster(tmp_path), {"name": "1-serve"})
