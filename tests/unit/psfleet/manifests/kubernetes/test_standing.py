"""A standing fleet as Kubernetes objects: valid, restricted, closed to strangers, and apart from a run of its name."""

from __future__ import annotations

from typing import Any

import pytest
from support.kubernetes_schema import problem, versions

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.kubernetes.client import client_pod
from psfleet.manifests.kubernetes.names import RENEWED, RUN, STANDING, selector
from psfleet.manifests.kubernetes.program_configmap import Files
from psfleet.manifests.kubernetes.standing import render_fleet
from psfleet.platforms.kubernetes.fleet_record import new_access
from psfleet.service import settings

Object = dict[str, Any]
DATA, CONTROL, EXCHANGE = 2222, 2223, 2226


def file(**sections: Any) -> FleetFile:
    return FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2, "workers": 1}, **sections})


def rendered(**sections: Any) -> list[Object]:
    made = file(**sections)
    return render_fleet(made, new_access(made))


def client(*arguments: str, **sections: Any) -> Object:
    items = Files({"client.py": b"", "data/a.bin": b"\xff"}).items()
    made = file(**sections)
    return client_pod(made, new_access(made), 1, ["client.py", *arguments], "lab-client-x.program", items)


def only(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods(objects: list[Object]) -> list[Object]:
    """The pods and pod templates."""
    return [*(each["spec"]["template"] for each in objects if each["kind"] == "StatefulSet"), client()]


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
@pytest.mark.parametrize(
    "sections", [{}, {"tls": True}, {"kubernetes": {"node_selector": {"a": "b"}, "secret_files": ["s:/s"]}}]
)
def test_all_objects_are_valid(version: str, sections: Object) -> None:
    objects = [*rendered(**sections), client("--x", **sections)]
    assert not [text for text in (problem(each, version) for each in objects) if text]


def test_servers_have_stable_names_and_the_addresses_that_clients_know() -> None:
    access = new_access(file())
    assert access.ps == ["lab-ps-0.lab:2222", "lab-ps-1.lab:2222"]
    assert access.workers == ["lab-worker-0.lab:2222"]
    objects = rendered()
    for role, count in (("ps", 2), ("worker", 1)):
        content = only(objects, "StatefulSet", f"lab-{role}")["spec"]
        assert (content["serviceName"], content["replicas"], content["podManagementPolicy"]) == (
            "lab",
            count,
            "Parallel",
        )
        (container,) = content["template"]["spec"]["containers"]
        env = {each["name"]: each for each in container["env"]}
        assert env[settings.ADDRESS]["value"] == f"lab-{role}-$(PSFLEET_INDEX).lab:2222"
        assert env[settings.INDEX]["valueFrom"]["fieldRef"]["fieldPath"] == (
            "metadata.labels['apps.kubernetes.io/pod-index']"
        )
        # Kubernetes replaces a name only by a variable that was defined before.
        assert list(env).index(settings.INDEX) < list(env).index(settings.ADDRESS)
        assert container["livenessProbe"]["grpc"] == {"port": CONTROL}
        assert FleetAccess.from_json(env[settings.FLEET]["value"], role).ps == access.ps
    service = only(objects, "Service", "lab")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert {each["name"]: each["port"] for each in service["ports"]} == {
        "tensorflow": DATA,
        "control": CONTROL,
        "exchange": EXCHANGE,
    }
    assert only(objects, "PodDisruptionBudget", "lab-ps")["spec"]["maxUnavailable"] == 1


def test_a_fleet_without_workers_has_no_object_of_them_but_the_account_of_clients() -> None:
    objects = rendered(fleet={"ps": 1})
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "StatefulSet"] == ["lab-ps"]
    assert only(objects, "ServiceAccount", "lab-worker")["automountServiceAccountToken"] is False


def test_every_pod_is_restricted_and_has_no_token() -> None:
    found = pods(rendered())
    assert sorted(pod["spec"]["containers"][0]["name"] for pod in found) == ["client", "ps", "worker"]
    for pod in found:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert container["resources"]["limits"] == container["resources"]["requests"]


def allowed(peers: list[Object]) -> set[tuple[str, int]]:
    """Pairs of a component and a port in the ingress or egress rules of a policy; every peer is of the fleet."""
    found = set()
    for rule in peers:
        for each in rule.get("from", rule.get("to", ())):
            chosen = each["podSelector"]
            assert set(each) == {"podSelector"}, "of this namespace"
            assert chosen["matchLabels"] == {"app.kubernetes.io/instance": "lab", "app.kubernetes.io/part-of": STANDING}
            (expression,) = chosen["matchExpressions"]
            assert (expression["key"], expression["operator"]) == ("app.kubernetes.io/component", "In")
            found |= {(component, port["port"]) for component in expression["values"] for port in rule["ports"]}
    return found


def test_only_the_fleet_and_its_clients_reach_the_ports() -> None:
    objects = rendered()
    fleet = only(objects, "NetworkPolicy", "lab")["spec"]
    assert fleet["podSelector"]["matchExpressions"][0]["values"] == ["ps", "worker"]
    data = {(component, DATA) for component in ("ps", "worker", "client")}
    assert allowed(fleet["ingress"]) == data | {("client", CONTROL)}
    assert allowed(fleet["egress"]) == data
    clients = only(objects, "NetworkPolicy", "lab-client")["spec"]
    assert clients["podSelector"]["matchExpressions"][0]["values"] == ["client"]
    assert allowed(clients["ingress"]) == {("ps", DATA), ("worker", DATA)}
    assert allowed(clients["egress"]) == {(role, port) for role in ("ps", "worker") for port in (DATA, CONTROL)}
    for policy in (fleet, clients):
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        without_peers = [rule for rule in policy["egress"] if "to" not in rule]
        assert {port["port"] for rule in without_peers for port in rule["ports"]} == {53, 5353}
        assert all("from" in rule for rule in policy["ingress"])


def test_with_tls_tunnels_are_reached_instead_of_tensorflow() -> None:
    objects = rendered(tls=True)
    ports = {
        port
        for each in ("lab", "lab-client")
        for _, port in allowed(only(objects, "NetworkPolicy", each)["spec"]["ingress"])
    }
    assert ports == {2225, CONTROL}
    made = {role: only(objects, "StatefulSet", f"lab-{role}")["spec"]["template"] for role in ("ps", "worker")}
    expected = {"ps": {2225, CONTROL, EXCHANGE}, "worker": {2225, CONTROL}, "client": {2225}}
    for role, pod in {**made, "client": client(tls=True)}.items():
        (container,) = pod["spec"]["containers"]
        assert {each["containerPort"] for each in container["ports"]} == expected[role]
        assert {"name": settings.TLS, "value": "/tls"} in container["env"]
        secrets = [each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each]
        assert secrets == [f"lab-{role}-tls"], "its own certificate, and no other"
        if role != "client":
            # The kubelet has no certificate.
            assert container["livenessProbe"]["exec"]["command"] == ["python", "-m", "psfleet.service.health"]


def test_policies_select_the_pods_that_are_made() -> None:
    objects = rendered()
    chosen = {}
    for name in ("lab", "lab-client"):
        chosen[name] = only(objects, "NetworkPolicy", name)["spec"]["podSelector"]
    for pod in pods(objects):
        labels = pod["metadata"]["labels"]
        matching = [
            name
            for name, selected in chosen.items()
            if selected["matchLabels"].items() <= labels.items()
            and labels["app.kubernetes.io/component"] in selected["matchExpressions"][0]["values"]
        ]
        assert matching == ["lab-client" if labels["app.kubernetes.io/component"] == "client" else "lab"]


def test_nothing_of_a_run_of_the_same_name_is_selected() -> None:
    of_run = {**selector("lab", "ps", RUN)}.items()
    for each in (*rendered(), client()):
        labels = each["metadata"]["labels"]
        assert labels.items() >= selector("lab", None, STANDING).items()
        assert not labels.items() >= selector("lab", None, RUN).items()
    chosen = [
        only(rendered(), "Service", "lab")["spec"]["selector"],
        only(rendered(), "PodDisruptionBudget", "lab-ps")["spec"]["selector"]["matchLabels"],
        only(rendered(), "StatefulSet", "lab-ps")["spec"]["selector"]["matchLabels"],
    ]
    assert not [each for each in chosen if of_run >= each.items()]


def test_a_client_gets_its_words_as_they_are_and_is_reached_at_its_own_address() -> None:
    pod = client("--steps", "5", "$(HOME) $HOME")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == [
        "/usr/bin/tini", "--", "python", "-P", "-m", "psfleet.processes.renewed", "/etc/psfleet/client/renewed",
        "/program/client.py", "--steps", "5", "$$(HOME) $HOME",
    ]  # fmt: skip
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert (pod["metadata"]["name"], env[settings.INDEX]) == ("lab-client-1", "1")
    assert env["PSFLEET_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env[settings.ADDRESS] == "$(PSFLEET_HOST):2222"
    assert "grpc.keepalive_time_ms" in env["TF_GRPC_DEFAULT_OPTIONS"]
    assert env["PYTHONSAFEPATH"] == "", "a script finds modules in its own folder"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert {volume["name"]: volume.get("configMap", {}).get("name") for volume in pod["spec"]["volumes"]} == {
        "tmp": None,
        "program": "lab-client-x.program",
        "renewal": None,
    }


def test_a_client_reads_its_own_annotation_where_its_watching_process_looks() -> None:
    spec = client()["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "renewal"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "renewal"]
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{RENEWED}']"
    assert f"{mount['mountPath']}/{item['path']}" in spec["containers"][0]["command"]


def test_the_kubernetes_section_applies_to_servers_and_clients() -> None:
    section = {
        "image_pull_policy": "Never",
        "priority_class": "high",
        "worker": {"node_selector": {"gpu": "yes"}, "service_account": "theirs"},
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    }
    objects = rendered(kubernetes=section)
    ps = only(objects, "StatefulSet", "lab-ps")["spec"]["template"]["spec"]
    worker = only(objects, "StatefulSet", "lab-worker")["spec"]["template"]["spec"]
    own = client(kubernetes=section)["spec"]
    for spec in (ps, worker, own):
        assert (spec["priorityClassName"], spec["containers"][0]["imagePullPolicy"]) == ("high", "Never")
    assert "nodeSelector" not in ps
    assert worker["nodeSelector"] == own["nodeSelector"] == {"gpu": "yes"}
    assert (ps["serviceAccountName"], worker["serviceAccountName"]) == ("lab-ps", "theirs")
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"] == ["lab-ps"]
    for name in ("lab", "lab-client"):
        assert only(objects, "NetworkPolicy", name)["spec"]["egress"][-1] == section["egress"][0]
