"""The NetworkPolicies of a run: with ps of its own, with ps elsewhere, or on the ps of a standing fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psfleet.addresses import Address
from psfleet.job.job import Job
from psfleet.manifests.kubernetes.names import (
    CHIEF,
    COMPONENT,
    PS,
    STANDING,
    TRAINING,
    WORKER,
    labels,
    on_fleet_policy,
    selector,
)
from psfleet.manifests.kubernetes.pod_template import Object, ports
from psfleet.manifests.on_fleet import OnFleet

DNS_PORTS = (53, 5353)
"""Ports of the cluster's resolver, wherever it runs: a policy sees the port of its pod, which is 5353 on OpenShift."""


def run_policies(job: Job, place: OnFleet | None = None) -> list[Object]:
    """The policies of a run, which allow nothing but what is named here, DNS, and what the job adds.

    Its ps and workers reach each other. On a standing fleet, its workers reach the data and control ports of the
    fleet's ps, and these reach the workers' data port: TensorFlow connects in both directions.

    Args:
        place: On a standing fleet; None: the run has no ps of one.
    """
    data, control = ports(job).values()
    own = _peers(selector(job.name), TRAINING)
    names = {"ports": [_port(port, protocol) for port in DNS_PORTS for protocol in ("UDP", "TCP")]}
    ingress = [{"from": own, "ports": _tcp([data, control])}]
    egress = [{"to": own, "ports": _tcp([data, control])}, names]
    further: list[Object] = []
    if place is not None:
        ps = _peers(selector(place.fleet, None, STANDING), [PS])
        ingress.append({"from": ps, "ports": _tcp([data])})
        egress.append({"to": ps, "ports": _tcp([data, control])})
        further.append(_of_the_ps(job, place.fleet, data, control))
    elif job.fleet.ps_addresses is not None:
        egress.append({"ports": _tcp(_ports_elsewhere(job))})
    chosen = {"matchLabels": selector(job.name)}
    return [_policy(job, job.name, chosen, ingress, [*egress, *job.kubernetes.egress]), *further]


def _of_the_ps(job: Job, fleet: str, data: int, control: int) -> Object:
    """What the ps of a standing fleet are allowed in addition to the fleet's own policy while a run is there."""
    workers = _peers(selector(job.name), [CHIEF, WORKER])
    return _policy(
        job,
        on_fleet_policy(job.name),
        _chosen(selector(fleet, None, STANDING), [PS]),
        [{"from": workers, "ports": _tcp([data, control])}],
        [{"to": workers, "ports": _tcp([data])}],
    )


def _policy(job: Job, name: str, pods: Object, ingress: list[Any], egress: list[Any]) -> Object:
    spec = {"podSelector": pods, "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}
    meta = {"name": name, "labels": labels(job.name)}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def _peers(fleet: dict[str, str], components: Sequence[str]) -> list[Object]:
    return [{"podSelector": _chosen(fleet, components)}]


def _chosen(fleet: dict[str, str], components: Sequence[str]) -> Object:
    """Selects the pods of components of a fleet."""
    return {
        "matchLabels": fleet,
        "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": [*components]}],
    }


def _tcp(numbers: Iterable[int]) -> list[Object]:
    return [_port(number, "TCP") for number in numbers]


def _port(number: int, protocol: str) -> Object:
    return {"protocol": protocol, "port": number}


def _ports_elsewhere(job: Job) -> list[int]:
    """The ports of `fleet.ps_addresses`: the control port of each, and TensorFlow's, or the tunnel's with TLS."""
    ps = [Address.parse(text) for text in job.fleet.ps_addresses or ()]
    return sorted({port for at in ps for port in (at.control_port, at.tunnel_port if job.tls else at.port)})
