"""What NetworkPolicies are made of: selected pods, their ports, and the rule for the cluster's resolver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psfleet.job.job import Job
from psfleet.manifests.kubernetes.names import COMPONENT, labels
from psfleet.manifests.kubernetes.pod_template import Object

NETWORKING = "networking.k8s.io/v1"
"""The API of NetworkPolicies."""
DNS_PORTS = (53, 5353)
"""Ports of the cluster's resolver, wherever it runs: a policy sees the port of its pod, which is 5353 on OpenShift."""


def fleet_policy(job: Job, name: str, pods: Object, ingress: Sequence[Object], egress: Sequence[Object]) -> Object:
    """A policy of the fleet of a job; see `policy_spec`."""
    meta, spec = {"name": name, "labels": labels(job.name)}, policy_spec(pods, ingress, egress)
    return {"apiVersion": NETWORKING, "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def policy_spec(pods: Object, ingress: Sequence[Object], egress: Sequence[Object]) -> Object:
    """The spec of a policy, which allows the pods nothing but these rules, in both directions."""
    return {
        "podSelector": pods,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [*ingress],
        "egress": [*egress],
    }


def pods_of(fleet: dict[str, str], components: Sequence[str]) -> Object:
    """Selects the pods of components of a fleet.

    Args:
        fleet: The labels of its pods; see `names.selector`.
    """
    return {
        "matchLabels": fleet,
        "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": [*components]}],
    }


def peers(fleet: dict[str, str], components: Sequence[str]) -> list[Object]:
    """The other ends of a rule: pods as of `pods_of`."""
    return [{"podSelector": pods_of(fleet, components)}]


def tcp(numbers: Iterable[int]) -> list[Object]:
    """TCP ports of a rule."""
    return [_port(number, "TCP") for number in numbers]


def to_resolver() -> Object:
    """The egress rule for DNS."""
    return {"ports": [_port(port, protocol) for port in DNS_PORTS for protocol in ("UDP", "TCP")]}


def _port(number: int, protocol: str) -> Object:
    return {"protocol": protocol, "port": number}
