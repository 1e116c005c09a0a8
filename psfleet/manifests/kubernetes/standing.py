"""Renders a standing fleet as Kubernetes objects: StatefulSets, and the objects that they need."""

from __future__ import annotations

from typing import Any

from psfleet.addresses import DATA_PORT
from psfleet.job.container import Limits
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import (
    CLIENT,
    PS,
    STANDING,
    WORKER,
    component_name,
    labels,
    require_service_name,
    selector,
    tls_secret,
)
from psfleet.manifests.kubernetes.placement import NODE
from psfleet.manifests.kubernetes.pod_settings import apply_settings, service_account
from psfleet.manifests.kubernetes.pod_template import (
    TMP,
    Object,
    container_security,
    pod_security,
    probe,
    probes,
    resources,
)
from psfleet.manifests.kubernetes.policy_rules import NETWORKING, peers, pods_of, policy_spec, tcp, to_resolver
from psfleet.manifests.kubernetes.standing_environment import of_server

FILE_KEY, ACCESS_KEY = "fleet.json", "access.json"
"""Keys of the fleet's ConfigMap: the resolved fleet file, and what clients know of this start of the fleet."""
SERVING = (PS, WORKER)


def addresses(file: FleetFile, component: str, count: int) -> list[str]:
    """`host:port` of each ps or worker within the namespace: pods of a StatefulSet have host names with their index."""
    return [f"{component_name(file.name, component)}-{index}.{file.name}:{DATA_PORT}" for index in range(count)]


def render_fleet(file: FleetFile, access: FleetAccess) -> list[Object]:
    """All objects of a standing fleet; the last one, the StatefulSet of the ps, is to own the others.

    Raises:
        BadJobError: No Service can have the fleet's name.
    """
    require_service_name(file.name)
    accounts = [
        _object("v1", "ServiceAccount", file, role, automountServiceAccountToken=False)
        for role in SERVING
        if service_account(file.kubernetes, role) is None
    ]
    data = {FILE_KEY: file.model_dump_json(indent=2), ACCESS_KEY: access.model_dump_json(indent=2)}
    objects = [*accounts, _object("v1", "ConfigMap", file, data=data), _service(file), *_policies(file)]
    objects.append(_disruption_budget(file))
    if file.fleet.workers:
        objects.append(_stateful_set(file, access, WORKER, file.fleet.workers))
    return [*objects, _stateful_set(file, access, PS, file.fleet.ps)]


def _object(version: str, kind: str, file: FleetFile, component: str | None = None, **rest: Any) -> Object:
    name = file.name if component is None else component_name(file.name, component)
    meta = {"name": name, "labels": labels(file.name, component, STANDING)}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **rest}


def _service(file: FleetFile) -> Object:
    """Gives each ps and worker a DNS name, also before it is ready: `psfleet status` shows whether it is."""
    named = [{"name": name, "port": port} for name, port in _ports(file).items()]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(file.name, None, STANDING),
        "ports": named,
    }
    return _object("v1", "Service", file, spec=spec)


def data_port(file: FleetFile) -> dict[str, int]:
    """The port at which TensorFlow is reached, by name."""
    return {"tunnel": container.TUNNEL_PORT} if file.tls else {"tensorflow": DATA_PORT}


def _ports(file: FleetFile, component: str = PS) -> dict[str, int]:
    exchange = {"exchange": container.EXCHANGE_PORT} if component == PS else {}
    return {**data_port(file), "control": container.CONTROL_PORT, **exchange}


def _policies(file: FleetFile) -> list[Object]:
    """NetworkPolicies of ps and workers, and of clients.

    TensorFlow connects ps and workers with clients in both directions; clients do not connect to each other. The
    control plane of ps and workers is for clients, which register their sessions there.
    """
    own = selector(file.name, None, STANDING)
    serving, clients = peers(own, SERVING), peers(own, [CLIENT])
    data, control = (tcp([port]) for port in _ports(file, WORKER).values())
    further = [to_resolver(), *file.kubernetes.egress]
    everyone = [*serving, *clients]
    fleet = _policy(
        file,
        None,
        pods_of(own, SERVING),
        [{"from": everyone, "ports": data}, {"from": clients, "ports": control}],
        [{"to": everyone, "ports": data}, *further],
    )
    client = _policy(
        file,
        CLIENT,
        pods_of(own, [CLIENT]),
        [{"from": serving, "ports": data}],
        [{"to": serving, "ports": [*data, *control]}, *further],
    )
    return [fleet, client]


def _policy(file: FleetFile, name: str | None, pods: Object, ingress: list[Object], egress: list[Object]) -> Object:
    return _object(NETWORKING, "NetworkPolicy", file, name, spec=policy_spec(pods, ingress, egress))


def _disruption_budget(file: FleetFile) -> Object:
    """Lets only one ps be evicted at a time."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(file.name, PS, STANDING)},
    }
    return _object("policy/v1", "PodDisruptionBudget", file, PS, spec=spec)


def _stateful_set(file: FleetFile, access: FleetAccess, component: str, count: int) -> Object:
    alike = {"matchLabels": selector(file.name, component, STANDING)}
    own = {
        "env": of_server(access, component, file.tls),
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(file, component).items()],
        **probes(probe(file.tls), file.deadlines.start_secs),
    }
    template_spec = pod_spec(file, component, own, [], [])
    template_spec["terminationGracePeriodSeconds"] = max(1, round(file.deadlines.stop_secs))
    template_spec["topologySpreadConstraints"] = [
        {"maxSkew": 1, "topologyKey": NODE, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": alike}
    ]
    pod = {"metadata": {"labels": labels(file.name, component, STANDING)}, "spec": template_spec}
    spec = {
        "serviceName": file.name,
        "replicas": count,
        # No process waits for another one.
        "podManagementPolicy": "Parallel",
        "selector": alike,
        "template": apply_settings(file.kubernetes, component, pod),
    }
    return _object("apps/v1", "StatefulSet", file, component, spec=spec)


def pod_spec(file: FleetFile, component: str, own: Object, mounts: list[Object], volumes: list[Object]) -> Object:
    """The spec of a pod of ps, workers or clients.

    Args:
        own: What only the container of the component has.
        mounts: Of volumes that only its pod has.
        volumes: These volumes.
    """
    role = PS if component == PS else WORKER
    if file.tls:
        mounts = [*mounts, {"name": "tls", "mountPath": container.TLS, "readOnly": True}]
        volumes = [*volumes, {"name": "tls", "secret": {"secretName": tls_secret(file.name, component)}}]
    limits: Limits = getattr(file.container, role)
    made = {
        "name": component,
        "image": file.container.ps_image if component == PS else file.container.worker_image,
        "imagePullPolicy": "IfNotPresent",
        "resources": resources(limits),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": TMP}, *mounts],
        **own,
    }
    return {
        "serviceAccountName": component_name(file.name, role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [made],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }
