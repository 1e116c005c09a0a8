"""The objects of a run that trains on the ps of a standing fleet, and what opens for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_schema import problem, versions

from psfleet.errors import BadJobError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import parse_job
from psfleet.manifests.kubernetes.names import COMPONENT, ON_FLEET, RUN, RUN_ID, STANDING, selector
from psfleet.manifests.kubernetes.on_fleet import require_served
from psfleet.manifests.kubernetes.render import render
from psfleet.manifests.on_fleet import OnFleet

Object = dict[str, Any]
PS = ["lab-ps-0.lab:2222", "lab-ps-1.lab:2222"]
DATA, CONTROL, EXCHANGE = 2222, 2223, 2226
PLACE = OnFleet("lab", "small-1f")
JOB: Object = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "ps_addresses": PS, "workers": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}


@pytest.fixture
def objects(tmp_path: Path) -> dict[tuple[str, str], Object]:
    found = render(parse_job(JOB), tmp_path / "job.yaml", place=PLACE)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def of_fleet(*components: str) -> Object:
    """Pods of the standing fleet."""
    return pods(selector("lab", None, STANDING), *components)


def of_run(*components: str) -> Object:
    """Pods of the run."""
    return pods(selector("small", None, RUN), *components)


def pods(chosen: Object, *components: str) -> Object:
    return {
        "matchLabels": chosen,
        "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": [*components]}],
    }


def opened(policy: Object, side: str) -> list[tuple[Object, list[int]]]:
    """Pairs of the pods and the ports of the rules of a policy that name pods."""
    key = {"ingress": "from", "egress": "to"}[side]
    rules = [rule for rule in policy["spec"][side] if key in rule]
    return [(peer["podSelector"], [each["port"] for each in rule["ports"]]) for rule in rules for peer in rule[key]]


def test_all_objects_are_valid(objects: dict[tuple[str, str], Object]) -> None:
    assert not [text for text in (problem(each, versions()[-1]) for each in objects.values()) if text]


def test_a_run_has_workers_of_its_own_and_no_ps(objects: dict[tuple[str, str], Object]) -> None:
    assert {name for kind, name in objects if kind == "Job"} == {"small-chief", "small-worker"}
    assert {name for kind, name in objects if kind == "ServiceAccount"} == {"small-worker"}
    assert not [name for kind, name in objects if kind == "PodDisruptionBudget"]
    for component in ("chief", "worker"):
        (container,) = objects["Job", f"small-{component}"]["spec"]["template"]["spec"]["containers"]
        assert {"name": "PSFLEET_PS", "value": ",".join(PS)} in container["env"]
        assert {"name": "PSFLEET_RUN", "value": "small-1f"} in container["env"]
    chief = objects["Job", "small-chief"]["metadata"]["labels"]
    assert (chief[ON_FLEET], chief[RUN_ID]) == ("lab", "small-1f")


def test_the_runs_pods_reach_the_fleets_ps_and_no_other_pod_of_the_fleet(
    objects: dict[tuple[str, str], Object],
) -> None:
    policy = objects["NetworkPolicy", "small"]
    assert opened(policy, "ingress") == [(of_fleet("ps"), [DATA]), (of_run("chief"), [CONTROL])]
    assert opened(policy, "egress") == [(of_fleet("ps"), [DATA, CONTROL, EXCHANGE]), (of_run("worker"), [CONTROL])]
    assert all("from" in rule for rule in policy["spec"]["ingress"])
    without_peers = [rule for rule in policy["spec"]["egress"] if "to" not in rule]
    assert {port["port"] for rule in without_peers for port in rule["ports"]} == {53, 5353}


def test_the_fleets_ps_are_opened_for_the_workers_of_this_run_alone(objects: dict[tuple[str, str], Object]) -> None:
    policy = objects["NetworkPolicy", "small.on-fleet"]
    assert policy["spec"]["podSelector"] == of_fleet("ps")
    assert opened(policy, "ingress") == [(of_run("chief", "worker"), [DATA, CONTROL, EXCHANGE])]
    assert opened(policy, "egress") == [(of_run("chief", "worker"), [DATA])]
    assert [len(policy["spec"][side]) for side in ("ingress", "egress")] == [1, 1], "nothing for anybody else"
    assert policy["metadata"]["labels"].items() >= selector("small").items(), "`psfleet down small` deletes it"


def test_with_tls_the_runs_pods_have_the_certificate_of_the_fleets_workers(tmp_path: Path) -> None:
    found = render(parse_job({**JOB, "tls": True}), tmp_path / "job.yaml", place=PLACE)
    jobs = [each["spec"]["template"]["spec"] for each in found if each["kind"] == "Job"]
    secrets = [[each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each] for spec in jobs]
    assert secrets == [["lab-worker-tls"]] * 2
    ports = {
        port for each in found if each["kind"] == "NetworkPolicy" for _, some in opened(each, "egress") for port in some
    }
    assert ports == {2225, CONTROL, EXCHANGE}
    require_served(parse_job({**JOB, "tls": True}), FleetFile.model_validate({"name": "lab", "tls": True}))


def test_a_run_with_ps_of_its_own_opens_no_fleet(tmp_path: Path) -> None:
    job = parse_job({**JOB, "fleet": {"ps": 2, "workers": 2}})
    found = render(job, tmp_path / "job.yaml")
    assert [each["metadata"]["name"] for each in found if each["kind"] == "NetworkPolicy"] == ["small", "small.ps"]
    assert not [each for each in found if ON_FLEET in each["metadata"]["labels"]]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"tls": True}, "tls is true, expected false on fleet lab, whose file has tls: false"),
        ({"checkpoint": {"shared": True}}, r"checkpoint\.shared is true, expected false on fleet lab: its ps do not"),
        ({"checkpoint": {"store": "s3://bucket/run"}}, r"checkpoint\.store is s3://bucket/run, expected null on flee"),
    ],
)
def test_what_the_ps_of_a_standing_fleet_lack_is_refused(sections: Object, message: str) -> None:
    file = FleetFile.model_validate({"name": "lab"})
    with pytest.raises(BadJobError, match=message):
        require_served(parse_job({**JOB, **sections}), file)
    require_served(parse_job(JOB), file)


def test_a_store_is_allowed_where_the_fleets_ps_have_a_way_out() -> None:
    file = FleetFile.model_validate({"name": "lab", "kubernetes": {"egress": [{"ports": [{"port": 443}]}]}})
    require_served(parse_job({**JOB, "checkpoint": {"store": "s3://bucket/run"}}), file)
