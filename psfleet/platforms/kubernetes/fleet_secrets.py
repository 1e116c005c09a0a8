"""Decides which Secrets with the certificates of a standing fleet are created or renewed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psfleet.errors import UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.kubernetes.names import tls_secret
from psfleet.manifests.kubernetes.tls_secrets import fleet_secrets
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.objects import FleetObjects
from psfleet.platforms.kubernetes.renewal import Renewal
from psfleet.tls import certificates
from psfleet.tls.identity import AUTHORITY, ROLES


def named_secrets(file: FleetFile) -> list[dict[str, Any]]:
    """The Secrets of a fleet without their content."""
    names = [tls_secret(file.name, role) for role in ROLES] if file.tls else []
    return [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}} for name in names]


def secrets_to_apply(
    cluster: Cluster, objects: FleetObjects, file: FleetFile, is_new: bool, is_whole: bool
) -> Sequence[Mapping[str, Any]]:
    """The Secrets that a fleet lacks. Those that it has are renewed, if this machine has their authority.

    Args:
        is_new: Whether this command has created the fleet's record: then it creates all Secrets.
        is_whole: Whether the fleet has all its objects.

    Raises:
        UsageError: Some are missing, and others are of the authority of another machine.
    """
    if not file.tls:
        return []
    if is_whole:
        renew(cluster, objects, file)
        return []
    certificates.ensure(certificates_folder(file.name))
    made = fleet_secrets(file)
    if is_new:
        return made
    kept = {each["metadata"]["name"]: cluster.secret(each["metadata"]["name"]) for each in made}
    missing = [each for each in made if not kept[each["metadata"]["name"]]]
    others = [name for name, old in kept.items() if old and old.get(AUTHORITY) != made[0]["data"][AUTHORITY]]
    if missing and others:
        raise UsageError(
            f"fleet {file.name} is not complete, and Secret {others[0]} has the authority of another machine, expected "
            f"`psfleet fleet up` there, or `psfleet fleet down {file.name} --on kubernetes` first"
        )
    return missing


def renew(cluster: Cluster, objects: FleetObjects, file: FleetFile) -> None:
    """Renews the certificates of a fleet that is up, if this machine has its authority."""
    if (certificates_folder(file.name) / AUTHORITY).exists():
        Renewal(cluster, objects, file).look()
