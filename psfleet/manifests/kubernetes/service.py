"""Renders a service as Kubernetes objects: Deployments of the front and of each member, and what they need."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.job.service_plan import ServicePlan
from psfleet.manifests.kubernetes.names import (
    ACTIVITY,
    ACTIVITY_KEY,
    FRONT,
    JOB_KEY,
    MEMBER,
    SERVICE_INDEX,
    WORKER,
    component_name,
    labels,
    own_policy,
    require_service_name,
    selector,
)
from psfleet.manifests.kubernetes.pod_settings import service_account
from psfleet.manifests.kubernetes.pod_template import Object
from psfleet.manifests.kubernetes.policy_rules import fleet_policy, peers, pods_of, tcp, to_resolver
from psfleet.manifests.kubernetes.program_configmap import Files
from psfleet.manifests.kubernetes.render import fleet_object
from psfleet.manifests.kubernetes.service_models import model_claim
from psfleet.manifests.kubernetes.service_pods import (
    Program,
    client_ports,
    data_port,
    front_pod,
    member_name,
    member_pod,
)
from psfleet.manifests.yaml_text import job_text

DEPLOYMENT = ("apps/v1", "Deployment")


def render(job: Job, activity: Activity, plan: ServicePlan, front_files: Mapping[str, bytes]) -> list[Object]:
    """All objects of a service; the last one, the Deployment of the front, is to own the others.

    Args:
        job: Describes the containers; its name is that of the fleet.
        front_files: Files of the front by name, which only its Secret has.

    Raises:
        BadJobError: No Service can have the name.
        UsageError: A program does not fit into a ConfigMap.
    """
    require_service_name(job.name)
    programs = _programs(job, plan, front_files)
    data = {JOB_KEY: job_text(job), ACTIVITY_KEY: activity.model_dump_json()}
    objects = [
        *_accounts(job),
        fleet_object("v1", "ConfigMap", job, data=data),
        *(files.config_map(program.owner, labels(job.name)) for program, files in programs.values()),
        *model_claim(job, activity, plan),
        *_services(job, plan),
        *_policies(job, plan),
    ]
    if front_files:
        # Not `stringData`, whose changes server-side apply does not follow.
        content = {name: b64encode(data).decode() for name, data in front_files.items()}
        objects.append(fleet_object("v1", "Secret", job, FRONT, data=content))
    for index in range(plan.num_members):
        model = plan.model_of(index)
        found = programs.get(model.program_folder)
        pod = member_pod(job, activity, plan, index, None if found is None else found[0])
        objects.append(_deployment(job, activity, MEMBER, index, pod))
    return [*objects, _deployment(job, activity, FRONT, 0, front_pod(job, activity, plan, bool(front_files)))]


def _accounts(job: Job) -> list[Object]:
    """The front has an account of its own also where the members have one with rights, which it does not need."""
    own = [FRONT] if service_account(job.kubernetes, WORKER) is not None else [FRONT, MEMBER]
    return [fleet_object("v1", "ServiceAccount", job, each, automountServiceAccountToken=False) for each in own]


def _programs(job: Job, plan: ServicePlan, front_files: Mapping[str, bytes]) -> dict[str, tuple[Program, Files]]:
    """The programs of the models by their folders, without the front's files; empty: they are in the image."""
    if job.container.program != "mount":
        return {}
    folders = dict.fromkeys(model.program_folder for model in plan.models)
    found = {folder: Files.of(Path(folder)).without(front_files.values()) for folder in folders}
    return {
        folder: (Program(f"{job.name}.{number}", files.items()), files)
        for number, (folder, files) in enumerate(found.items())
    }


def _services(job: Job, plan: ServicePlan) -> list[Object]:
    """The Service of clients, which leads to a front that is ready; and names of front and members for each other."""
    ports = [{"name": name, "port": outer, "targetPort": inner} for name, (outer, inner) in client_ports(plan).items()]
    of_clients = fleet_object("v1", "Service", job, spec={"selector": selector(job.name, FRONT), "ports": ports})
    return [of_clients, *(_headless(job, component) for component in (FRONT, MEMBER))]


def _headless(job: Job, component: str) -> Object:
    ports = [{"name": name, "port": port} for name, port in data_port(job).items()]
    selected = selector(job.name, component)
    # The front is ready only after members have found it.
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selected, "ports": ports}
    return fleet_object("v1", "Service", job, component, spec=spec)


def _policies(job: Job, plan: ServicePlan) -> list[Object]:
    """Policies that allow clients from everywhere at the front, and TensorFlow's port between front and members.

    Members reach what the job adds, too: an object store, or what their programs need.
    """
    own, data = selector(job.name), tcp(data_port(job).values())
    front, members = pods_of(own, [FRONT]), pods_of(own, [MEMBER])
    to_front, to_members = peers(own, [FRONT]), peers(own, [MEMBER])
    clients = {"ports": tcp(inner for _, inner in client_ports(plan).values())}
    of_front = [{"from": to_members, "ports": data}, clients]
    of_members = [{"from": to_front, "ports": data}]
    further = [{"to": to_front, "ports": data}, *job.kubernetes.egress]
    return [
        fleet_policy(job, job.name, {"matchLabels": own}, [], [to_resolver()]),
        fleet_policy(job, own_policy(job.name, FRONT), front, of_front, [{"to": to_members, "ports": data}]),
        fleet_policy(job, own_policy(job.name, MEMBER), members, of_members, further),
    ]


def _deployment(job: Job, activity: Activity, component: str, index: int, pod: Object) -> Object:
    """A Deployment of one pod. A node that is lost keeps its pod, but not, as with a StatefulSet, the next one."""
    labelled = {ACTIVITY: activity.kind, SERVICE_INDEX: str(index)}
    pod["metadata"]["labels"] |= labelled
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {**selector(job.name, component), SERVICE_INDEX: str(index)}},
        "template": pod,
    }
    version, kind = DEPLOYMENT
    made = fleet_object(version, kind, job, component, spec=spec)
    made["metadata"]["name"] = component_name(job.name, FRONT) if component == FRONT else member_name(job, index)
    made["metadata"]["labels"] |= labelled
    return made
