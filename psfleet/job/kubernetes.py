"""The job file's `kubernetes` section: what a cluster requires of the fleet's pods and Jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from posixpath import normpath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from psfleet.job.fields import NonNegativeInt, Options, Section

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
SECRET_KEY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?:[A-Za-z0-9._-]+")
SECRET_FOLDER = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?:/[^:]+")
LABEL_VALUE = re.compile(r"(?=.{0,63}\Z)([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")
OWN_ENV = ("PSFLEET_", "JOB_COMPLETION_INDEX")
"""Prefixes of variables that psfleet sets."""
OWN_FOLDERS = ("/out", "/program", "/tls", "/etc/psfleet")
"""Folders in the containers with files of psfleet only."""
SHARED_FOLDER = "/tmp"
"""Folder in the containers in which everybody may have files and folders."""
ROLES = ("ps", "worker")
OWN_LABELS = ("app.kubernetes.io/", "batch.kubernetes.io/")
"""Prefixes of labels by which psfleet and the Job controller find a fleet's objects."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""Name of a Kubernetes object."""
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")]


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    _require(LABEL_VALUE, labels.values(), "values of labels: at most 63 letters, digits, dots, dashes, underscores")
    return _checked_keys(labels)


def _checked_keys(labels: dict[str, str]) -> dict[str, str]:
    """Checks the names of labels or annotations."""
    for key in labels:
        if not LABEL_KEY.fullmatch(key):
            raise ValueError(f"{key!r} is in it, expected names of labels such as example.com/team")
        if key.startswith(OWN_LABELS):
            raise ValueError(f"{key!r} is in it, expected no label with the prefix {' or '.join(OWN_LABELS)}")
    return labels


def _require(pattern: re.Pattern[str], texts: Iterable[str], expected: str) -> None:
    for text in texts:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} is in it, expected {expected}")


Labels = Annotated[dict[str, str], AfterValidator(_checked_labels)]
Annotations = Annotated[dict[str, str], AfterValidator(_checked_keys)]


class Pods(Section):
    """Settings of the pods of one role."""

    labels: Labels = Field(default_factory=dict, description="Labels of the pods.")
    annotations: Annotations = Field(default_factory=dict, description="Annotations of the pods.")
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables; job file and report show them."
    )
    secret_env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables from Secrets: `SECRET:KEY` by the variable's name."
    )
    env_from_secrets: list[Name] = Field(
        default_factory=list, description="Secrets of which each key becomes an environment variable."
    )
    secret_files: list[str] = Field(
        default_factory=list,
        description="`SECRET:FOLDER`: each key of the Secret becomes a read-only file in this folder of the container.",
    )
    resources: dict[str, NonNegativeInt | Quantity] = Field(
        default_factory=dict,
        description="Further resources of each pod, for example `nvidia.com/gpu: 1`; memory and CPUs are set in "
        "`container`.",
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: list[Options] = Field(default_factory=list, description="Tolerations, as Kubernetes defines them.")
    affinity: Options | None = Field(
        None, description="The pods' `affinity`, as Kubernetes defines it; psfleet adds its own terms."
    )
    priority_class: Name | None = Field(None, description="Name of a PriorityClass.")
    service_account: Name | None = Field(
        None, description="Name of an existing ServiceAccount; null: psfleet creates one. No token is mounted."
    )

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str]) -> dict[str, str]:
        _check_names(env)
        return env

    @field_validator("secret_env")
    @classmethod
    def _check_secret_env(cls, env: dict[str, str]) -> dict[str, str]:
        _check_names(env)
        _require(SECRET_KEY, env.values(), "SECRET:KEY")
        return env

    @field_validator("secret_files")
    @classmethod
    def _check_secret_files(cls, files: list[str]) -> list[str]:
        _require(SECRET_FOLDER, files, "SECRET:FOLDER with an absolute FOLDER")
        return files

    @field_validator("affinity")
    @classmethod
    def _check_affinity(cls, affinity: dict[str, Any] | None) -> dict[str, Any] | None:
        """Only the parts that psfleet adds its own terms to; the API checks the rest."""
        for kind, rules in (affinity or {}).items():
            if not isinstance(rules, dict):
                raise ValueError(f"{kind} is {rules!r}, expected a mapping")
        for rule, terms in (affinity or {}).get("podAffinity", {}).items():
            if not isinstance(terms, list):
                raise ValueError(f"podAffinity.{rule} is {terms!r}, expected a list")
        return affinity

    @field_validator("resources")
    @classmethod
    def _check_resources(cls, resources: dict[str, int | str]) -> dict[str, int | str]:
        for name in ("memory", "cpu"):
            if name in resources:
                raise ValueError(f"{name} is in it, expected in the section container, by role")
        _require(LABEL_KEY, resources, "names of resources such as nvidia.com/gpu")
        return resources


class PodsByRole(Pods):
    """Settings of the pods of ps and workers, with those that only one of the roles has."""

    ps: Pods = Field(
        default_factory=Pods,
        description="Of ps only: lists are appended to those above, mappings are merged, other values replace them.",
    )
    worker: Pods = Field(default_factory=Pods, description="Of workers and spares only; in the same way.")
    image_pull_secrets: list[Name] = Field(
        default_factory=list, description="Secrets with the credentials of the images' registries."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When the kubelet pulls the images."
    )
    egress: list[Options] = Field(
        default_factory=list,
        description="Further egress rules of the fleet's NetworkPolicy, as Kubernetes defines them, for example to an "
        "object store.",
    )

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that have settings."""
        return ROLES

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        for role in self.roles:
            pods = self.of_role(role)
            for name in pods.env:
                if name in pods.secret_env:
                    raise ValueError(f"{name} is in env and in secret_env of {role}, expected in one of them")
        return self

    def of_role(self, role: str) -> Pods:
        """The settings of the pods of a role, those of all roles included."""
        own: Pods = getattr(self, role)
        return Pods(**{name: _merged(getattr(self, name), getattr(own, name)) for name in Pods.model_fields})


class Kubernetes(PodsByRole):
    """Fleets on Kubernetes. Settings of pods apply to all roles; `ps`, `worker` and `loader` add to them. Ignored
    elsewhere."""

    loader: Pods = Field(default_factory=Pods, description="Of loaders only; in the same way.")
    job_labels: Labels = Field(
        default_factory=dict, description="Labels of all Jobs, for example `kueue.x-k8s.io/queue-name`."
    )
    job_annotations: Annotations = Field(default_factory=dict, description="Annotations of all Jobs.")

    @property
    def roles(self) -> tuple[str, ...]:
        """See PodsByRole."""
        return (*ROLES, "loader")


def _merged(shared: Any, own: Any) -> Any:
    if isinstance(shared, list):
        return [*shared, *own]
    if isinstance(shared, dict) and isinstance(own, dict):
        return {**shared, **own}
    return shared if own is None else own


def require_own_folders(section: PodsByRole, mounts: Iterable[str]) -> None:
    """Checks that each folder of `secret_files` has no other files: a pod cannot mount two volumes in one folder.

    Args:
        mounts: `container.mounts`, which workers and loaders have.

    Raises:
        ValueError: One has.
    """
    targets = [_folder(mount) for mount in mounts]
    for role in section.roles:
        taken = {SHARED_FOLDER, *(targets if role != "ps" else ())}
        for folder in map(_folder, section.of_role(role).secret_files):
            if folder in taken or any(f"{folder}/".startswith(f"{own}/") for own in OWN_FOLDERS):
                raise ValueError(
                    f"kubernetes: secret_files has {folder}, which has other files, expected a folder of its own"
                )
            taken.add(folder)


def _folder(pair: str) -> str:
    """The FOLDER of `SOURCE:FOLDER`."""
    return "/" + normpath(pair.partition(":")[2]).lstrip("/")


def _check_names(env: Iterable[str]) -> None:
    for name in env:
        if not ENV_NAME.fullmatch(name) or name.startswith(OWN_ENV):
            raise ValueError(
                f"{name!r} is in it, expected names of variables, none with the prefix {' or '.join(OWN_ENV)}"
            )
