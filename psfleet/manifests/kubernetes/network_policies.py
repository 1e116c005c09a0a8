"""The NetworkPolicies of a run: with ps of its own, with ps elsewhere, or on the ps of a standing fleet."""

from __future__ import annotations

from collections.abc import Sequence

from psfleet.addresses import Address
from psfleet.job.job import Job
from psfleet.manifests.kubernetes.names import (
    CHIEF,
    COMPLETION_INDEX,
    COMPONENT,
    FIRST_INDEX,
    LOADER,
    PS,
    STANDING,
    WORKER,
    on_fleet_policy,
    own_policy,
    replica_policy,
    selector,
)
from psfleet.manifests.kubernetes.pod_template import Object, ports
from psfleet.manifests.kubernetes.policy_rules import fleet_policy, peers, pods_of, tcp, to_resolver
from psfleet.manifests.on_fleet import OnFleet

TO_LOADERS = "to-loaders"
"""Last part of the name of the policy of those who read from loaders."""


def run_policies(job: Job, place: OnFleet | None = None) -> list[Object]:
    """The policies of a run, which allow nothing but what is named here, DNS, and what the job adds.

    Chief and workers reach the data, control and exchange ports of the ps, and the ps reach their data port: TensorFlow
    connects in both directions. With `fleet.colocate` they are the ps, and reach each other. The chief reaches the
    control port of workers, to ask for gradients. With in-graph replication, the chief and each worker reach each
    other's data port, too. With several parts those of one replica do. Chief and workers reach the ports of loaders,
    which reach nothing but DNS and what the job adds.

    Args:
        place: On a standing fleet; None: the run has no ps of one.
    """
    data, control, exchange = ports(job).values()
    own = selector(job.name)
    chief, others = peers(own, [CHIEF]), peers(own, [WORKER])
    ingress: list[Object] = []
    egress: list[Object] = []
    further: list[Object] = []
    if place is not None or job.fleet.ps_addresses is None:
        serving = own if place is None else selector(place.fleet, None, STANDING)
        ps = peers(serving, _serving(job))
        ingress.append({"from": ps, "ports": tcp([data])})
        egress.append({"to": ps, "ports": tcp([data, control, exchange])})
        further.append(_of_the_ps(job, place, pods_of(serving, _serving(job))))
    of_chief = [data, control] if job.update.is_in_graph else [control]
    ingress.append({"from": chief, "ports": tcp(of_chief)})
    egress.append({"to": others, "ports": tcp(of_chief)})
    if job.update.is_in_graph:
        egress.append({"to": chief, "ports": tcp([data])})
        opened = [{"from": others, "ports": tcp([data])}]
        further.append(fleet_policy(job, own_policy(job.name, CHIEF), pods_of(own, [CHIEF]), opened, []))
    if job.fleet.parts > 1:
        further += [policy for replica in range(job.fleet.replicas) for policy in _of_parts(job, replica)]
    egress.append(to_resolver())
    if place is None and job.fleet.ps_addresses is not None:
        egress.append({"ports": tcp(_ports_elsewhere(job))})
    pods: Object = {"matchLabels": own}
    if job.input.num_loaders:
        pods["matchExpressions"] = [{"key": COMPONENT, "operator": "NotIn", "values": [LOADER]}]
        further += _of_loaders(job)
    return [fleet_policy(job, job.name, pods, ingress, [*egress, *job.kubernetes.egress]), *further]


def _serving(job: Job) -> list[str]:
    """The components whose pods are ps."""
    return [CHIEF, WORKER] if job.fleet.colocate else [PS]


def _of_the_ps(job: Job, place: OnFleet | None, ps: Object) -> Object:
    """What the ps are allowed for a run in addition to the policy of all pods of the run, or of the standing fleet."""
    data, control, exchange = ports(job).values()
    name = own_policy(job.name, PS) if place is None else on_fleet_policy(job.name)
    workers = peers(selector(job.name), [CHIEF, WORKER])
    ingress = [{"from": workers, "ports": tcp([data, control, exchange])}]
    return fleet_policy(job, name, ps, ingress, [{"to": workers, "ports": tcp([data])}])


def _of_loaders(job: Job) -> list[Object]:
    """What loaders are allowed, and what chief and workers are allowed with them: these connect, and no loader does."""
    own = selector(job.name)
    loaders, workers = pods_of(own, [LOADER]), pods_of(own, [CHIEF, WORKER])
    open_ports = tcp(ports(job, LOADER).values())
    ingress = [{"from": [{"podSelector": workers}], "ports": open_ports}]
    egress = [{"to": [{"podSelector": loaders}], "ports": open_ports}]
    return [
        fleet_policy(job, own_policy(job.name, LOADER), loaders, ingress, [to_resolver(), *job.kubernetes.egress]),
        fleet_policy(job, own_policy(job.name, TO_LOADERS), workers, [], egress),
    ]


def _of_parts(job: Job, replica: int) -> list[Object]:
    """What the workers of a replica are allowed: the data port of each other."""
    tasks = list(job.fleet.tasks_of(replica))
    selected = {WORKER: _workers(job, [task for task in tasks if task])}
    if 0 in tasks:
        selected[CHIEF] = pods_of(selector(job.name), [CHIEF])
    data, *_ = ports(job).values()
    others, port = [{"podSelector": pods} for pods in selected.values()], tcp([data])
    return [
        fleet_policy(
            job,
            replica_policy(job.name, replica, component),
            pods,
            [{"from": others, "ports": port}],
            [{"to": others, "ports": port}],
        )
        for component, pods in selected.items()
    ]


def _workers(job: Job, indices: Sequence[int]) -> Object:
    """Selects workers other than the chief by their indices."""
    pods = pods_of(selector(job.name), [WORKER])
    values = [str(index - FIRST_INDEX[WORKER]) for index in indices]
    pods["matchExpressions"].append({"key": COMPLETION_INDEX, "operator": "In", "values": values})
    return pods


def _ports_elsewhere(job: Job) -> list[int]:
    """The ports of `fleet.ps_addresses`: of each that for control, exchange, and TensorFlow, or the tunnel with TLS."""
    ps = [Address.parse(text) for text in job.fleet.ps_addresses or ()]
    data = {at.tunnel_port if job.tls else at.port for at in ps}
    return sorted(data.union(*((at.control_port, at.exchange_port) for at in ps)))
