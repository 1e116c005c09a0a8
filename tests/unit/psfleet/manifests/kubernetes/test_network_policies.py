"""Which pods of a run reach which, by its NetworkPolicies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from psfleet.job.job import parse_job
from psfleet.manifests.kubernetes.names import COMPLETION_INDEX, COMPONENT
from psfleet.manifests.kubernetes.pod_template import Object
from psfleet.manifests.kubernetes.render import render

DATA, CONTROL, TUNNEL, EXCHANGE = 2222, 2223, 2225, 2226
JOB: dict[str, Any] = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}
COMPONENTS = ("ps", "chief", "worker", "results")
BETWEEN_GRAPH = {
    ("chief", "ps"): {DATA, CONTROL, EXCHANGE},
    ("worker", "ps"): {DATA, CONTROL, EXCHANGE},
    ("ps", "ps"): {DATA},
    ("ps", "chief"): {DATA},
    ("ps", "worker"): {DATA},
    ("chief", "worker"): {CONTROL},
}
IN_GRAPH = {
    **BETWEEN_GRAPH,
    ("chief", "worker"): {DATA, CONTROL},
    ("worker", "chief"): {DATA},
    ("chief", "chief"): {DATA},
}


LOADERS = {"from": "loaders", "loaders": 2}
PORTS = {False: (DATA, 2226), True: (TUNNEL, 2229)}
"""The two ports of a loader's data service, without TLS and with it."""


def policies(folder: Path, **changes: Any) -> list[Object]:
    (folder / "program.py").touch()
    objects = render(parse_job({**JOB, **changes}), folder / "job.yaml")
    return [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]


def chosen(selector: Object, pod: str) -> bool:
    """Whether a selector of the run's pods selects those of a component, or `component-i` of completion index i."""
    assert selector["matchLabels"] == {"app.kubernetes.io/instance": "small", "app.kubernetes.io/part-of": "psfleet"}
    component, _, index = pod.partition("-")
    values = {COMPONENT: component, COMPLETION_INDEX: index}
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] in ("In", "NotIn") for each in expressions)
    return all((values[each["key"]] in each["values"]) == (each["operator"] == "In") for each in expressions)


def allowed(specs: list[Object], side: str, own: str, other: str) -> set[int]:
    """The ports that the policies of one component's pods allow from or to those of another."""
    key = {"ingress": "from", "egress": "to"}[side]
    return {
        port["port"]
        for spec in specs
        if chosen(spec["podSelector"], own)
        for rule in spec[side]
        for peer in rule.get(key, ())
        if chosen(peer["podSelector"], other)
        for port in rule["ports"]
    }


def reached(specs: list[Object], pods: Sequence[str] = COMPONENTS) -> dict[tuple[str, str], set[int]]:
    """The ports that pods reach at others: both sides allow it."""
    pairs = {
        (own, other): allowed(specs, "egress", own, other) & allowed(specs, "ingress", other, own)
        for own in pods
        for other in pods
    }
    return {pair: ports for pair, ports in pairs.items() if ports}


@pytest.mark.parametrize(
    ("replication", "expected"),
    [("between_graph", BETWEEN_GRAPH), ("in_graph", IN_GRAPH)],
    ids=["between_graph", "in_graph"],
)
def test_workers_reach_the_ps_and_with_one_graph_the_chief(
    tmp_path: Path, replication: str, expected: dict[tuple[str, str], set[int]]
) -> None:
    assert reached(policies(tmp_path, update={"replication": replication})) == expected


def test_with_tls_the_data_port_is_that_of_the_tunnel(tmp_path: Path) -> None:
    tunnels = {pair: {TUNNEL if port == DATA else port for port in ports} for pair, ports in IN_GRAPH.items()}
    assert reached(policies(tmp_path, tls=True, update={"replication": "in_graph"})) == tunnels


def test_with_parts_only_the_workers_of_one_replica_reach_each_other(tmp_path: Path) -> None:
    """Workers 0, 2 and 4 are a replica, and 1, 3 and 5."""
    specs = policies(tmp_path, fleet={"workers": 6, "parts": 3}, tls=True)
    pods = ["chief-0", *[f"worker-{index}" for index in range(5)]]
    pairs = {(pods[own], pods[other]) for own in range(6) for other in range(6) if own % 2 == other % 2}
    assert {pair for pair, ports in reached(specs, pods).items() if TUNNEL in ports} == pairs
    assert all(ports <= {TUNNEL, CONTROL} for ports in reached(specs, pods).values())


def test_nothing_but_dns_is_reached_outside_of_the_run(tmp_path: Path) -> None:
    specs = policies(tmp_path)
    assert all(spec["policyTypes"] == ["Ingress", "Egress"] for spec in specs)
    assert all(rule.get("from") for spec in specs for rule in spec["ingress"])
    (dns,) = (rule for spec in specs for rule in spec["egress"] if not rule.get("to"))
    assert "to" not in dns, "the resolver may be on the node, or in any namespace"
    assert [port["port"] for port in dns["ports"]] == [53, 53, 5353, 5353]


@pytest.mark.parametrize("tls", [False, True])
def test_workers_reach_loaders_and_loaders_reach_nobody(tmp_path: Path, tls: bool) -> None:
    specs = policies(tmp_path, tls=tls, input=LOADERS)
    found = reached(specs, [*COMPONENTS, "loader"])
    without = reached(policies(tmp_path, tls=tls))
    opened = {(own, "loader"): {*PORTS[tls], CONTROL} for own in ("chief", "worker")}
    assert found == without | opened


def test_loaders_leave_the_fleet_only_for_names_and_where_the_job_says(tmp_path: Path) -> None:
    extra = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"protocol": "TCP", "port": 443}]}
    specs = policies(tmp_path, input=LOADERS, kubernetes={"egress": [extra]})
    rules = [rule for spec in specs if chosen(spec["podSelector"], "loader") for rule in spec["egress"]]
    names, *others = rules
    assert {port["port"] for port in names["ports"]} == {53, 5353}
    assert others == [extra]


@pytest.mark.parametrize("tls", [False, True])
def test_colocated_workers_reach_each_other_and_nobody_else_does(tmp_path: Path, tls: bool) -> None:
    specs = policies(tmp_path, fleet={"workers": 3, "colocate": True}, tls=tls)
    ports = {TUNNEL if tls else DATA, CONTROL, EXCHANGE}
    workers = ("chief", "worker")
    assert reached(specs) == {(own, other): ports for own in workers for other in workers}
