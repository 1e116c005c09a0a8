"""Applies the `kubernetes` section of a job file or fleet file to the pods that psfleet renders."""

from __future__ import annotations

from typing import Any

from psfleet.job.kubernetes import Pods, PodsByRole
from psfleet.manifests.kubernetes.names import WORKER

Object = dict[str, Any]


def apply_settings(section: PodsByRole, role: str, pod: Object) -> Object:
    """A pod or pod template of ps or workers, completed by the settings of that role.

    Args:
        pod: Has `metadata` and `spec`; not changed. Its first container is that of the role.
    """
    settings = section.of_role(role)
    first, *others = pod["spec"]["containers"]
    spec = {**_placed(section, settings, pod["spec"]), "containers": [_container(section, settings, first), *others]}
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    if settings.secret_files:
        spec["volumes"] = [*spec["volumes"], *_volumes(settings)]
    return {**pod, "metadata": _metadata(settings, pod["metadata"]), "spec": spec}


def apply_placement(section: PodsByRole, pod: Object) -> Object:
    """A pod that reads the fleet's volume, completed by what lets it run where workers do; without their variables."""
    settings = section.of_role(WORKER)
    (container,) = pod["spec"]["containers"]
    container = {**container, "imagePullPolicy": section.image_pull_policy}
    spec = {**_placed(section, settings, pod["spec"]), "containers": [container]}
    return {**pod, "metadata": _metadata(settings, pod["metadata"]), "spec": spec}


def _placed(section: PodsByRole, settings: Pods, spec: Object) -> Object:
    """The spec of a pod with what decides whether and where it may run."""
    added = {
        "imagePullSecrets": [{"name": name} for name in section.image_pull_secrets],
        "nodeSelector": settings.node_selector,
        "tolerations": [*spec.get("tolerations", ()), *settings.tolerations],
        "priorityClassName": settings.priority_class,
        "affinity": _joined(settings.affinity or {}, spec.get("affinity", {})),
    }
    return {**spec, **{name: value for name, value in added.items() if value}}


def service_account(section: PodsByRole, role: str) -> str | None:
    """The existing ServiceAccount of a role; None: psfleet creates one."""
    return section.of_role(role).service_account


def _container(section: PodsByRole, settings: Pods, container: Object) -> Object:
    amounts = container["resources"]
    further = {name: str(amount) for name, amount in settings.resources.items()}
    changed = {
        **container,
        "imagePullPolicy": section.image_pull_policy,
        "env": [*_environment(settings), *container["env"]],
        "resources": {name: {**amounts[name], **further} for name in amounts},
    }
    if settings.env_from_secrets:
        changed["envFrom"] = [{"secretRef": {"name": name}} for name in settings.env_from_secrets]
    for number, (_, folder) in enumerate(_secret_files(settings)):
        mount = {"name": f"secret-{number}", "mountPath": folder, "readOnly": True}
        changed["volumeMounts"] = [*changed["volumeMounts"], mount]
    return changed


def _environment(settings: Pods) -> list[Object]:
    values: list[Object] = [{"name": name, "value": value} for name, value in settings.env.items()]
    for name, source in settings.secret_env.items():
        secret, _, key = source.partition(":")
        values.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return values


def _volumes(settings: Pods) -> list[Object]:
    return [
        {"name": f"secret-{number}", "secret": {"secretName": secret}}
        for number, (secret, _) in enumerate(_secret_files(settings))
    ]


def _secret_files(settings: Pods) -> list[tuple[str, str]]:
    """Pairs of a Secret and a folder in the container."""
    pairs = (text.partition(":") for text in settings.secret_files)
    return [(secret, folder) for secret, _, folder in pairs]


def _metadata(settings: Pods, metadata: Object) -> Object:
    """The labels of psfleet come last: the cluster's services find the pods by them."""
    changed = {**metadata, "labels": {**settings.labels, **metadata["labels"]}}
    if settings.annotations:
        changed["annotations"] = {**metadata.get("annotations", {}), **settings.annotations}
    return changed


def _joined(first: Any, second: Any) -> Any:
    """Two Kubernetes objects as one: mappings are merged, lists appended."""
    if isinstance(first, dict) and isinstance(second, dict):
        rest = {key: value for key, value in second.items() if key not in first}
        return {key: _joined(value, second[key]) if key in second else value for key, value in first.items()} | rest
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return second
